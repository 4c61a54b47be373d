//! The codes of eight elements, those of hits to the front.

/// For each mask of eight lanes, the byte shuffle that moves its lanes' halves to the front.
pub(super) static FRONT: [[u8; 16]; 256] = {
    let mut table = [[0x80; 16]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut place) = (0, 0);
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                table[mask][2 * place] = 2 * lane;
                table[mask][2 * place + 1] = 2 * lane + 1;
                place += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
};
