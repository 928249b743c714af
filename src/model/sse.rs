//! Decodes a server-sent event stream from bytes, however they were cut into chunks. Performs no IO.
//!
//! Lines end with LF, CR or CRLF; comments and unknown fields are skipped; invalid UTF-8 becomes U+FFFD, but only after a
//! line is whole, so a character that was split between chunks survives. An event that the stream's end left without its
//! blank line is still delivered ([`Decoder::finish`]): many servers forget it.

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The `event:` field; empty when there was none.
    pub name: String,
    /// The `data:` lines, joined by LF.
    pub data: String,
}

/// A line or an event is longer than [`MAX_EVENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// The most bytes of one line and of one event's data.
pub const MAX_EVENT: usize = 8 << 20;

/// The decoder of one stream.
#[derive(Debug, Default)]
pub struct Decoder {
    line: Vec<u8>,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    /// A line was decoded: a byte order mark is no longer expected.
    begun: bool,
    event: Event,
    /// The event has a `data:` line, perhaps an empty one.
    has_data: bool,
}

impl Decoder {
    /// Takes the next bytes and appends the events they complete.
    ///
    /// # Errors
    /// [`TooLong`]; the decoder is of no further use then.
    pub fn push(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.line.extend_from_slice(bytes);
                return if self.line.len() > MAX_EVENT { Err(TooLong) } else { Ok(()) };
            };
            if self.line.len() + end > MAX_EVENT {
                return Err(TooLong);
            }
            self.after_cr = bytes[end] == b'\r';
            if self.line.is_empty() {
                self.take_line(&bytes[..end], events)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.take_line(&line, events)?;
                line.clear();
                self.line = line;
            }
            bytes = &bytes[end + 1..];
        }
        Ok(())
    }

    /// The stream has ended: the event that waits for its blank line, if there is one.
    ///
    /// # Errors
    /// [`TooLong`].
    pub fn finish(mut self) -> Result<Option<Event>, TooLong> {
        let mut events = Vec::new();
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.take_line(&line, &mut events)?;
        }
        self.take_line(b"", &mut events)?;
        Ok(events.pop())
    }

    fn take_line(&mut self, line: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        let line = if self.begun { line } else { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) };
        self.begun = true;
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                events.push(event);
            }
            return Ok(());
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = String::from_utf8_lossy(value.strip_prefix(b" ").unwrap_or(value));
        match &line[..colon] {
            b"data" => {
                if self.event.data.len() + value.len() > MAX_EVENT {
                    return Err(TooLong);
                }
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(&value);
                self.has_data = true;
            }
            b"event" => self.event.name = value.into_owned(),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Event> {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        for chunk in chunks {
            decoder.push(chunk, &mut events).expect("short");
        }
        events.extend(decoder.finish().expect("short"));
        events
    }

    fn data(texts: &[&str]) -> Vec<Event> {
        texts.iter().map(|text| Event { name: String::new(), data: (*text).to_owned() }).collect()
    }

    #[test]
    fn bad_input_62_line_ends_comments_and_spacing_do_not_matter() {
        let stream = "\u{feff}: hi\r\ndata: a\r\n\r\n: keep-alive\n\ndata:b\rdata:  c\r\rid: 7\nretry: 1\nnonsense\n\ndata\n\ndata: 小龙虾";
        assert_eq!(decode([stream.as_bytes()]), data(&["a", "b\n c", "", "小龙虾"]));
        let named = decode([b"event: error\ndata: {}\n\ndata: x\n\n".as_slice()]);
        assert_eq!(named[0], Event { name: "error".to_owned(), data: "{}".to_owned() });
        assert_eq!(named[1].name, "");
        assert_eq!(decode([b"".as_slice()]), []);
        assert_eq!(decode([b"data: \xff\xfe!\n\n".as_slice()]), data(&["\u{fffd}\u{fffd}!"]));
    }

    #[test]
    fn a_line_over_the_limit_ends_it() {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        let block = vec![b'x'; 1 << 20];
        decoder.push(b"data: ", &mut events).expect("short");
        let refused = (0..9).find(|_| decoder.push(&block, &mut events).is_err());
        assert_eq!(refused, Some(7));
        let mut decoder = Decoder::default();
        let mut line = b"data: ".to_vec();
        line.extend_from_slice(&vec![b'x'; 5 << 20]);
        line.push(b'\n');
        decoder.push(&line, &mut events).expect("one line fits");
        assert_eq!(decoder.push(&line, &mut events), Err(TooLong));
    }

    proptest! {
        #[test]
        fn bad_input_62_any_chunking_gives_the_same_events(
            pieces in proptest::collection::vec(
                prop_oneof![
                    Just("data: ".as_bytes().to_vec()), Just(b"data:".to_vec()), Just(b"event: e".to_vec()),
                    Just(b":".to_vec()), Just(b"\n".to_vec()), Just(b"\r".to_vec()), Just(b"\r\n".to_vec()),
                    Just("龙😀é".as_bytes().to_vec()), Just(b"\xf0\x9f".to_vec()), Just(b"\xef\xbb\xbf".to_vec()),
                    Just(b" {\"a\":1}".to_vec()),
                ],
                0..40,
            ),
            cuts in proptest::collection::vec(1usize..7, 1..20),
        ) {
            let stream = pieces.concat();
            let whole = decode([stream.as_slice()]);
            let single: Vec<&[u8]> = stream.chunks(1).collect();
            prop_assert_eq!(&decode(single), &whole);
            let mut rest = stream.as_slice();
            let mut chunks = Vec::new();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (head, tail) = rest.split_at((*cut).min(rest.len()));
                chunks.push(head);
                rest = tail;
            }
            prop_assert_eq!(&decode(chunks), &whole);
        }
    }
}
