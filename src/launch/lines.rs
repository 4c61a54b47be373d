//! From pieces of bytes to whole lines with a prefix; and the last lines of a stream.

use std::collections::VecDeque;

/// A line longer than this is passed on in pieces, in bytes.
pub(super) const LONGEST: usize = 64 * 1024;
/// How many of a stream's last lines are kept for the report.
pub(super) const TAIL: usize = 20;
/// How much of each of them is kept, in bytes.
const TAIL_WIDTH: usize = 1024;

/// What is about to be written to one file, by several streams.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// The stream whose line is unfinished in the file.
    open: Option<usize>,
    /// To be written, then cleared.
    pub(super) text: Vec<u8>,
}

/// One stream of a replica: holds what has come of its line until the line is whole.
///
/// No byte is lost or changed. What is added: the prefix, and a newline where the stream ends without one, or where
/// another stream speaks in the middle of a line that is longer than [`LONGEST`] (the rest of it then gets the prefix
/// again).
#[derive(Debug)]
pub(super) struct Lines {
    stream: usize,
    prefix: Vec<u8>,
    pending: Vec<u8>,
}

impl Lines {
    /// `stream`: any number that no other stream on the same page has.
    pub(super) fn new(stream: usize, prefix: Vec<u8>) -> Lines {
        Lines {
            stream,
            prefix,
            pending: Vec::new(),
        }
    }

    /// Takes the next bytes, and puts on the page what has become whole.
    pub(super) fn feed(&mut self, bytes: &[u8], page: &mut Page) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if part.ends_with(b"\n") {
                self.put(part, page);
                page.open = None;
            } else if self.pending.len() + part.len() > LONGEST {
                self.put(part, page);
                page.open = Some(self.stream);
            } else {
                self.pending.extend_from_slice(part);
            }
        }
    }

    /// The stream has ended.
    pub(super) fn end(&mut self, page: &mut Page) {
        if !self.pending.is_empty() || page.open == Some(self.stream) {
            self.put(b"\n", page);
            page.open = None;
        }
    }

    fn put(&mut self, part: &[u8], page: &mut Page) {
        if page.open != Some(self.stream) {
            if page.open.is_some() {
                page.text.push(b'\n');
            }
            page.text.extend_from_slice(&self.prefix);
        }
        page.text.append(&mut self.pending);
        page.text.extend_from_slice(part);
    }
}

/// The last lines of a stream.
#[derive(Debug, Default)]
pub(super) struct Tail {
    whole: VecDeque<Vec<u8>>,
    partial: Vec<u8>,
    cut: bool,
}

impl Tail {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, whole) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            let room = TAIL_WIDTH - self.partial.len();
            self.cut |= text.len() > room;
            self.partial
                .extend_from_slice(&text[..text.len().min(room)]);
            if whole {
                self.close();
            }
        }
    }

    fn close(&mut self) {
        if self.cut {
            self.partial.extend_from_slice(b" ..");
        }
        self.cut = false;
        if self.whole.len() == TAIL {
            self.whole.pop_front();
        }
        self.whole.push_back(std::mem::take(&mut self.partial));
    }

    /// The last lines, oldest first, the unfinished one included.
    pub(super) fn lines(&mut self) -> Vec<String> {
        if !self.partial.is_empty() {
            self.close();
        }
        let text = |line: &Vec<u8>| String::from_utf8_lossy(line).trim_end().to_owned();
        self.whole.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(page: &Page) -> &str {
        std::str::from_utf8(&page.text).unwrap()
    }

    #[test]
    fn a_line_is_put_out_when_it_is_whole_and_not_before() {
        let mut page = Page::default();
        let mut zero = Lines::new(0, b"[0] ".to_vec());
        let mut one = Lines::new(1, b"[1] ".to_vec());
        zero.feed(b"hal", &mut page);
        one.feed(b"first\nsec", &mut page);
        assert_eq!(text(&page), "[1] first\n");
        zero.feed(b"f\n\n", &mut page);
        one.feed(b"ond\n", &mut page);
        assert_eq!(text(&page), "[1] first\n[0] half\n[0] \n[1] second\n");
    }

    #[test]
    fn a_missing_last_newline_is_added() {
        let mut page = Page::default();
        let mut zero = Lines::new(0, b"[0] ".to_vec());
        zero.feed(b"no end", &mut page);
        zero.end(&mut page);
        zero.end(&mut page);
        assert_eq!(text(&page), "[0] no end\n");
    }

    #[test]
    fn a_very_long_line_stays_one_line_where_nobody_else_speaks() {
        let mut page = Page::default();
        let mut zero = Lines::new(0, b"[0] ".to_vec());
        for _ in 0..10 {
            zero.feed(&[b'x'; 30_000], &mut page);
        }
        assert!(
            page.text.len() > 200_000,
            "pieces are passed on before the line ends"
        );
        zero.feed(b"\n", &mut page);
        let expected = format!("[0] {}\n", "x".repeat(300_000));
        assert!(text(&page) == expected);
    }

    #[test]
    fn who_speaks_in_the_middle_of_a_very_long_line_begins_a_line_of_its_own() {
        let mut page = Page::default();
        let mut zero = Lines::new(0, b"[0] ".to_vec());
        let mut one = Lines::new(1, b"[1] ".to_vec());
        zero.feed(&[b'x'; LONGEST + 1], &mut page);
        one.feed(b"short\n", &mut page);
        zero.feed(b"rest\nnext\n", &mut page);
        let expected = format!(
            "[0] {}\n[1] short\n[0] rest\n[0] next\n",
            "x".repeat(LONGEST + 1)
        );
        assert!(text(&page) == expected);
    }

    #[test]
    fn a_very_long_line_without_an_end_is_ended_with_its_stream() {
        let mut page = Page::default();
        let mut zero = Lines::new(0, b"[0] ".to_vec());
        zero.feed(&[b'x'; LONGEST + 1], &mut page);
        zero.end(&mut page);
        assert!(text(&page) == format!("[0] {}\n", "x".repeat(LONGEST + 1)));
    }

    #[test]
    fn any_bytes_in_any_pieces_come_out_unchanged() {
        let bytes: Vec<u8> = (0..200_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for piece in [1, 7, 4096, 65_536, 200_000] {
            let mut page = Page::default();
            let mut only = Lines::new(0, Vec::new());
            for part in bytes.chunks(piece) {
                only.feed(part, &mut page);
            }
            only.end(&mut page);
            assert!(page.text[..bytes.len()] == bytes[..], "pieces of {piece}");
        }
    }

    #[test]
    fn the_tail_keeps_the_last_lines_and_cuts_wide_ones() {
        let mut tail = Tail::default();
        for line in 0..30 {
            tail.feed(format!("line {line}\n").as_bytes());
        }
        tail.feed(&[b'w'; 5000]);
        let lines = tail.lines();
        assert_eq!(lines.len(), TAIL);
        assert_eq!(lines[0], "line 11");
        assert_eq!(lines[TAIL - 1], format!("{} ..", "w".repeat(TAIL_WIDTH)));
        tail.feed(b"\xff\n");
        assert_eq!(tail.lines()[TAIL - 1], "\u{fffd}");
    }
}
