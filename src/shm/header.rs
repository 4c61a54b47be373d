//! What a segment says about itself, and who believes it.
//!
//! The header is filled before the state word says that the segment is ready, and never changes after that. Whoever
//! attaches copies it once, and checks and uses that copy only.

use bytemuck::{Pod, Zeroable};

use super::layout::{self, Layout};

/// First bytes of every segment.
const MAGIC: [u8; 8] = *b"gradring";
/// Reads back as itself only in the byte order in which it was written.
const BYTE_ORDER: u32 = 0x0102_0304;
/// The version of this crate, for the message when two builds differ.
const VERSION: [u8; 16] = {
    let text = env!("CARGO_PKG_VERSION").as_bytes();
    let mut version = [0; 16];
    let mut i = 0;
    while i < text.len() && i < version.len() {
        version[i] = text[i];
        i += 1;
    }
    version
};
/// What to do when the layouts differ.
const ONE_BUILD: &str = "build launcher and replicas from one version";

/// The bytes at the start of a segment, 216 of them, without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Header {
    magic: [u8; 8],
    abi: u32,
    byte_order: u32,
    layout_hash: u64,
    version: [u8; 16],
    /// Number of ranks.
    world_size: u32,
    /// Distinct CPUs that the replicas together may use.
    cores: u32,
    ring_capacity: u64,
    total: u64,
    table: [u64; layout::TABLE],
    /// The 128 bits of the name.
    id: [u8; 16],
    /// 128 bits that no other segment has.
    nonce: [u8; 16],
    /// When the creator started, in clock ticks after boot: with its pid a process for good.
    creator_start: u64,
    /// When the segment was made, in seconds of the Unix epoch.
    created: u64,
    creator: u32,
    owner: u32,
    /// Cells of each rank.
    cells: u32,
    /// crc32c of everything before.
    checksum: u32,
}

/// Length of a header in bytes.
pub(crate) const LENGTH: usize = size_of::<Header>();

/// What a creator knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) layout: Layout,
    pub(crate) cores: u32,
    pub(crate) id: [u8; 16],
    pub(crate) nonce: [u8; 16],
    pub(crate) creator: u32,
    pub(crate) creator_start: u64,
    pub(crate) created: u64,
    pub(crate) owner: u32,
}

/// What whoever attaches knows before it reads the header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) world_size: usize,
    /// The 128 bits of the name.
    pub(crate) id: [u8; 16],
    /// Length of the file.
    pub(crate) length: u64,
    /// Owner of the file, already found to be this user.
    pub(crate) owner: u32,
}

/// What is wrong with a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) what: &'static str,
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl Refusal {
    pub(crate) fn new(what: &'static str, expected: impl ToString, found: impl ToString) -> Self {
        Self {
            what,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

impl Header {
    pub(crate) fn new(facts: &Facts) -> Header {
        let mut header = Header {
            magic: MAGIC,
            abi: layout::ABI,
            byte_order: BYTE_ORDER,
            layout_hash: layout::HASH,
            version: VERSION,
            world_size: facts.layout.world_size as u32,
            cores: facts.cores,
            ring_capacity: facts.layout.ring_capacity as u64,
            total: facts.layout.total as u64,
            table: facts.layout.table(),
            id: facts.id,
            nonce: facts.nonce,
            creator_start: facts.creator_start,
            created: facts.created,
            creator: facts.creator,
            owner: facts.owner,
            cells: facts.layout.cells as u32,
            checksum: 0,
        };
        header.checksum = header.computed_checksum();
        header
    }

    /// Checks one private copy of a header; the layout that follows from it.
    ///
    /// For any bytes: an answer, no panic, and no layout that is not exactly as long as the file.
    pub(crate) fn validate(
        bytes: &[u8; LENGTH],
        expected: &Expected,
    ) -> Result<(Header, Layout), Refusal> {
        let header: Header = bytemuck::pod_read_unaligned(bytes);
        check("magic", ascii(&MAGIC), ascii(&header.magic))?;
        check("byte order", hex32(BYTE_ORDER), hex32(header.byte_order))?;
        // Of another ABI nothing further can be read; of another layout only the version.
        check("ABI version", layout::ABI, header.abi)?;
        if header.layout_hash != layout::HASH {
            return Err(Refusal::new(
                "layout (another build)",
                format!(
                    "{:016x} of version {}: {ONE_BUILD}",
                    layout::HASH,
                    ascii(&VERSION)
                ),
                format!(
                    "{:016x} of version {}",
                    header.layout_hash,
                    ascii(&header.version)
                ),
            ));
        }
        check(
            "header checksum",
            hex32(header.computed_checksum()),
            hex32(header.checksum),
        )?;
        // Right by its checksum: from here on a difference is another segment, not a damaged one. The values are still
        // anybody's who can compute a checksum.
        check("name in the header", hex(&expected.id), hex(&header.id))?;
        check("owner in the header", expected.owner, header.owner)?;
        let layout = to_usize(header.world_size.into())
            .zip(to_usize(header.ring_capacity))
            .zip(to_usize(header.cells.into()))
            .and_then(|((world_size, capacity), cells)| {
                Layout::new(world_size, capacity, cells).ok()
            })
            .ok_or_else(|| {
                Refusal::new(
                    "world size, ring capacity and cells",
                    "a layout",
                    format!(
                        "{} ranks, rings of {} bytes, {} cells",
                        header.world_size, header.ring_capacity, header.cells
                    ),
                )
            })?;
        check("length in the header", layout.total as u64, header.total)?;
        check("length", header.total, expected.length)?;
        if layout.table() != header.table {
            return Err(Refusal::new(
                "table of offsets",
                format!("{:?}", layout.table()),
                format!("{:?}", header.table),
            ));
        }
        if header.cores == 0 {
            return Err(Refusal::new("cores", "at least 1", header.cores));
        }
        check("world size", expected.world_size, layout.world_size)?;
        Ok((header, layout))
    }

    /// Distinct CPUs that the replicas together may use, at least 1.
    pub fn cores(&self) -> usize {
        self.cores as usize
    }

    /// 128 bits that no other segment has.
    pub fn nonce(&self) -> [u8; 16] {
        self.nonce
    }

    /// Process id of the creator, in its pid namespace.
    pub fn creator(&self) -> u32 {
        self.creator
    }

    /// When the creator started, in clock ticks after boot; 0 if it could not tell.
    pub fn creator_start(&self) -> u64 {
        self.creator_start
    }

    /// When the segment was made, in seconds of the Unix epoch.
    pub fn created(&self) -> u64 {
        self.created
    }

    fn computed_checksum(&self) -> u32 {
        crc32c::crc32c(&bytemuck::bytes_of(self)[..LENGTH - size_of::<u32>()])
    }
}

fn check<T: PartialEq + ToString>(
    what: &'static str,
    expected: T,
    found: T,
) -> Result<(), Refusal> {
    if expected == found {
        Ok(())
    } else {
        Err(Refusal::new(what, expected, found))
    }
}

fn to_usize(value: u64) -> Option<usize> {
    usize::try_from(value).ok()
}

/// The bytes up to the first zero, as text that is safe to print.
fn ascii(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    bytes[..end].escape_ascii().to_string()
}

fn hex32(value: u32) -> String {
    format!("{value:08x}")
}

/// 16 bytes as 32 lower-case digits.
pub(crate) fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

const _: () = assert!(LENGTH == 216);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(world_size: usize) -> Facts {
        Facts {
            layout: Layout::new(
                world_size,
                layout::DEFAULT_RING_CAPACITY,
                crate::shm::cells::DEFAULT_CELLS,
            )
            .unwrap(),
            cores: 2,
            id: *b"0123456789abcdef",
            nonce: *b"fedcba9876543210",
            creator: 4711,
            creator_start: 123_456,
            created: 1_700_000_000,
            owner: 1000,
        }
    }

    fn expected(facts: &Facts) -> Expected {
        Expected {
            world_size: facts.layout.world_size,
            id: facts.id,
            length: facts.layout.total as u64,
            owner: facts.owner,
        }
    }

    fn bytes(header: &Header) -> [u8; LENGTH] {
        bytemuck::bytes_of(header).try_into().unwrap()
    }

    /// A header whose checksum is right although its creator changed something.
    fn forged(facts: &Facts, change: impl FnOnce(&mut Header)) -> [u8; LENGTH] {
        let mut header = Header::new(facts);
        change(&mut header);
        header.checksum = header.computed_checksum();
        bytes(&header)
    }

    fn refusal(bytes: &[u8; LENGTH], expected: &Expected) -> &'static str {
        Header::validate(bytes, expected).unwrap_err().what
    }

    #[test]
    fn a_header_is_accepted_as_it_was_made() {
        let facts = facts(3);
        let header = Header::new(&facts);
        let (copy, layout) = Header::validate(&bytes(&header), &expected(&facts)).unwrap();
        assert_eq!(copy, header);
        assert_eq!(layout, facts.layout);
    }

    #[test]
    fn every_bit_flipped_is_refused() {
        let facts = facts(4);
        let good = bytes(&Header::new(&facts));
        for i in 0..LENGTH {
            for bit in 0..8 {
                let mut bad = good;
                bad[i] ^= 1 << bit;
                assert!(
                    Header::validate(&bad, &expected(&facts)).is_err(),
                    "byte {i} bit {bit}"
                );
            }
        }
    }

    #[test]
    fn another_layout_names_both_versions_and_what_to_do() {
        let facts = facts(2);
        let bad = forged(&facts, |h| {
            h.layout_hash ^= 1;
            h.version = *b"99.1.2-\x1b\n\0\0\0\0\0\0\0";
        });
        let refusal = Header::validate(&bad, &expected(&facts)).unwrap_err();
        assert!(refusal.what.contains("layout"), "{refusal:?}");
        assert!(refusal.expected.contains(env!("CARGO_PKG_VERSION")));
        assert!(refusal.expected.contains(ONE_BUILD));
        assert!(refusal.found.contains("99.1.2-\\x1b\\n"), "{refusal:?}");
    }

    #[test]
    fn each_field_has_its_own_reason() {
        let facts = facts(2);
        let expected = expected(&facts);
        let of = |change: fn(&mut Header)| refusal(&forged(&facts, change), &expected);
        assert_eq!(of(|h| h.magic[0] ^= 1), "magic");
        assert_eq!(
            of(|h| h.byte_order = h.byte_order.swap_bytes()),
            "byte order"
        );
        assert_eq!(of(|h| h.abi += 1), "ABI version");
        assert_eq!(of(|h| h.id[15] ^= 1), "name in the header");
        assert_eq!(of(|h| h.owner += 1), "owner in the header");
        assert_eq!(
            of(|h| h.world_size = 0),
            "world size, ring capacity and cells"
        );
        assert_eq!(
            of(|h| h.world_size = 256),
            "world size, ring capacity and cells"
        );
        assert_eq!(
            of(|h| h.ring_capacity += 1),
            "world size, ring capacity and cells"
        );
        assert_eq!(
            of(|h| h.ring_capacity = 1 << 63),
            "world size, ring capacity and cells"
        );
        assert_eq!(of(|h| h.world_size = 3), "length in the header");
        assert_eq!(of(|h| h.total += 1), "length in the header");
        assert_eq!(of(|h| h.table[8] += 1), "table of offsets");
        assert_eq!(of(|h| h.cores = 0), "cores");
        let good = bytes(&Header::new(&facts));
        let longer = Expected {
            length: expected.length + 1,
            ..expected
        };
        assert_eq!(refusal(&good, &longer), "length");
        let other = Expected {
            world_size: 3,
            ..expected
        };
        assert_eq!(refusal(&good, &other), "world size");
        let mut damaged = good;
        damaged[LENGTH - 1] ^= 0x80;
        assert_eq!(refusal(&damaged, &expected), "header checksum");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_are_refused_or_the_very_header(
            edits in proptest::collection::vec((0..LENGTH, any::<u8>()), 1..40),
            repaired in any::<bool>(),
        ) {
            let facts = facts(5);
            let expected = expected(&facts);
            let good = bytes(&Header::new(&facts));
            let mut bad = good;
            for (i, value) in edits {
                bad[i] = value;
            }
            if repaired {
                let checksum = crc32c::crc32c(&bad[..LENGTH - 4]);
                bad[LENGTH - 4..].copy_from_slice(&checksum.to_ne_bytes());
            }
            if let Ok((header, layout)) = Header::validate(&bad, &expected) {
                // Only what nothing else depends on may differ, and only with a checksum made for it.
                prop_assert!(repaired || bad == good);
                prop_assert_eq!(layout, facts.layout);
                prop_assert_eq!(header.id, facts.id);
            }
        }

        #[test]
        fn random_bytes_are_refused(seed in proptest::collection::vec(any::<u8>(), LENGTH)) {
            let facts = facts(1);
            let bytes: [u8; LENGTH] = seed.try_into().unwrap();
            prop_assert!(Header::validate(&bytes, &expected(&facts)).is_err());
        }
    }
}
