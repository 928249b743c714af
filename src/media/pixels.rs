//! How large a picture would be once somebody unpacked it, told from its header alone: crawfish unpacks none, and shows a
//! model none that is made to fill the memory of whoever does. security.md §3.3 row 19. Pure.

/// The most pixels of a picture that is shown to a model. security.md row 19.
pub const MOST: u64 = 40_000_000;

/// The frames of a GIF count together, so that many small ones are one large picture; this many blocks are looked at.
const MOST_BLOCKS: usize = 10_000;

/// Whether a picture may be shown: a PNG, JPEG, GIF or WebP whose header says that it has at most [`MOST`] pixels. What
/// says nothing of its size is not shown.
pub fn may_be_shown(bytes: &[u8]) -> bool {
    pixels(bytes).is_some_and(|pixels| (1..=MOST).contains(&pixels))
}

/// The pixels that the header claims; `None` where it is cut or of another kind.
fn pixels(bytes: &[u8]) -> Option<u64> {
    let product = |width: u32, height: u32| u64::from(width).saturating_mul(u64::from(height));
    if let Some(rest) = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n") {
        return (rest.get(4..8)? == b"IHDR").then_some(product(big(rest, 8)?, big(rest, 12)?));
    }
    if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        return gif(bytes);
    }
    if bytes.starts_with(b"\xff\xd8") {
        return jpeg(bytes);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12)? == b"WEBP" {
        let chunk = bytes.get(20..)?;
        return match bytes.get(12..16)? {
            b"VP8 " => {
                let side = |at: usize| Some(u32::from(little(chunk, at)? & 0x3fff));
                (chunk.get(3..6)? == [0x9d, 0x01, 0x2a]).then_some(product(side(6)?, side(8)?))
            }
            b"VP8L" => {
                let bits = u32::from_le_bytes(chunk.get(1..5)?.try_into().ok()?);
                (chunk.first()? == &0x2f).then_some(product((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
            }
            b"VP8X" => {
                let side = |at: usize| Some(u32::from(little(chunk, at)?) + (u32::from(*chunk.get(at + 2)?) << 16) + 1);
                Some(product(side(4)?, side(7)?))
            }
            _ => None,
        };
    }
    None
}

fn big(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn little(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The screen, or all frames together when these are more.
fn gif(bytes: &[u8]) -> Option<u64> {
    let area = |at: usize| Some(u64::from(little(bytes, at)?) * u64::from(little(bytes, at + 2)?));
    let table = |flags: u8| if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) };
    let screen = area(6)?;
    let mut at = 13 + table(*bytes.get(10)?);
    let mut frames: u64 = 0;
    for _ in 0..MOST_BLOCKS {
        match bytes.get(at) {
            // A frame: its place and size, perhaps colours, then its pieces.
            Some(0x2c) => {
                let Some((size, flags)) = area(at + 5).zip(bytes.get(at + 9)) else { break };
                frames = frames.saturating_add(size);
                at = pieces(bytes, at + 11 + table(*flags));
            }
            Some(0x21) => at = pieces(bytes, at + 2),
            // The end, or what is cut off there.
            _ => return Some(screen.max(frames)),
        }
    }
    // More than anybody looks through.
    Some(u64::MAX)
}

/// Behind the pieces that begin here: a length each, and a 0.
fn pieces(bytes: &[u8], mut at: usize) -> usize {
    while let Some(length @ 1..) = bytes.get(at) {
        at += usize::from(*length) + 1;
    }
    at + 1
}

/// The size stands in the first frame's header, behind any number of others.
fn jpeg(bytes: &[u8]) -> Option<u64> {
    let mut at = 2;
    loop {
        let [0xff, marker] = *bytes.get(at..at + 2)? else { return None };
        match marker {
            // Filling.
            0xff => at += 1,
            0x01 | 0xd0..=0xd8 => at += 2,
            0xc4 | 0xc8 | 0xcc | 0x00 | 0xd9 | 0xda => {
                // Tables before the frame are passed over; pixels or the end before it are none.
                if !matches!(marker, 0xc4 | 0xc8 | 0xcc) {
                    return None;
                }
                at += 2 + usize::from(u16::from_be_bytes(bytes.get(at + 2..at + 4)?.try_into().ok()?));
            }
            0xc0..=0xcf => {
                let side = |at: usize| Some(u64::from(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
                return Some(side(at + 5)? * side(at + 7)?);
            }
            _ => at += 2 + usize::from(u16::from_be_bytes(bytes.get(at + 2..at + 4)?.try_into().ok()?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
        [&b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"[..], &size, &[8, 6, 0, 0, 0]].concat()
    }

    fn jpeg_of(width: u16, height: u16) -> Vec<u8> {
        let size = [height.to_be_bytes(), width.to_be_bytes()].concat();
        [&b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc4\0\x03x\xff\xc2\0\x0b\x08"[..], &size, &[1, 0, 0, 0]].concat()
    }

    fn webp(kind: &[u8], chunk: &[u8]) -> Vec<u8> {
        [&b"RIFF\0\0\0\0WEBP"[..], kind, &[0; 4], chunk].concat()
    }

    fn gif_of(frames: usize, side: u16) -> Vec<u8> {
        let side = side.to_le_bytes();
        let frame = [&[0x2c, 0, 0, 0, 0][..], &side, &side, &[0, 2, 1, 0xff, 0]].concat();
        let head = [&b"GIF89a"[..], &side, &side, &[0x80, 0, 0, 1, 2, 3, 4, 5, 6], b"\x21\xf9\x01a\0"].concat();
        [head, frame.repeat(frames), vec![0x3b]].concat()
    }

    #[test]
    fn row_19_a_picture_that_would_fill_the_memory_is_told_by_its_header() {
        let lossy = [&[0, 0, 0, 0x9d, 1, 0x2a][..], &640_u16.to_le_bytes(), &480_u16.to_le_bytes()].concat();
        let lossless = [&[0x2f][..], &(639_u32 | 479 << 14).to_le_bytes()].concat();
        let extended = [0, 0, 0, 0, 0x7f, 2, 0, 0xdf, 1, 0];
        for (name, picture) in [
            ("png", png(640, 480)),
            ("jpeg", jpeg_of(640, 480)),
            ("webp", webp(b"VP8 ", &lossy)),
            ("lossless webp", webp(b"VP8L", &lossless)),
            ("extended webp", webp(b"VP8X", &extended)),
        ] {
            assert_eq!(pixels(&picture), Some(640 * 480), "{name}");
            assert!(may_be_shown(&picture), "{name}");
            for end in 0..picture.len() {
                // Cut anywhere: not shown, or still told right.
                assert!(pixels(&picture[..end]).is_none_or(|told| told == 640 * 480), "{name} cut at {end}");
            }
        }
        assert_eq!((pixels(&gif_of(1, 100)), pixels(&gif_of(7, 100))), (Some(10_000), Some(70_000)));
        let huge = webp(b"VP8X", &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        for (name, bomb) in [
            ("60,000 × 60,000", png(60_000, 60_000)),
            ("as large as can be", png(u32::MAX, u32::MAX)),
            ("nothing", png(0, 7)),
            ("jpeg", jpeg_of(65_535, 65_535)),
            ("webp", huge),
            ("frames", gif_of(5_000, 1_000)),
            ("frames without end", gif_of(MOST_BLOCKS + 1, 1)),
            ("no size", b"\xff\xd8\xff\xd9".to_vec()),
            ("no picture", b"<svg/>".to_vec()),
        ] {
            assert!(!may_be_shown(&bomb), "{name}");
        }
        assert!(may_be_shown(&png(8_000, 5_000)) && !may_be_shown(&png(8_001, 5_000)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(kind in 0_usize..5, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let head: [&[u8]; 5] = [b"", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", b"GIF89a", b"\xff\xd8\xff\xe0", b"RIFF\0\0\0\0WEBPVP8X"];
            let _ = may_be_shown(&[head[kind], &bytes].concat());
        }
    }
}
