//! Just enough of PNG to see whether a picture shows anything: eight bits a channel, not interlaced, as
//! browsers write it.

use std::collections::HashSet;
use std::io::Read;

use flate2::read::ZlibDecoder;

/// A decoded PNG picture.
pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Red, green and blue of each pixel.
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    /// Reads a PNG (RFC 2083).
    pub(crate) fn read(bytes: &[u8]) -> Self {
        assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n", "no PNG");
        let (mut head, mut packed) = ([0; 13], Vec::new());
        let mut rest = &bytes[8..];
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            let (kind, body) = (&after[..4], &after[4..4 + length]);
            match kind {
                b"IHDR" => head.copy_from_slice(body),
                b"IDAT" => packed.extend_from_slice(body),
                _ => {}
            }
            rest = &after[4 + length + 4..];
        }
        let number =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let (width, height) = (number(0), number(4));
        let each = match head[8..] {
            [8, 2, 0, 0, 0] => 3,
            [8, 6, 0, 0, 0] => 4,
            ref other => panic!("a PNG of another sort: {other:?}"),
        };
        let mut filtered = Vec::new();
        ZlibDecoder::new(&packed[..]).read_to_end(&mut filtered).unwrap();
        let lines = unfiltered(&filtered, width * each, each);
        let pixels = lines
            .chunks(each)
            .map(|pixel| [pixel[0], pixel[1], pixel[2]])
            .collect();
        Self {
            width,
            height,
            pixels,
        }
    }

    /// How many different colours it has.
    pub(crate) fn colours(&self) -> usize {
        self.pixels.iter().collect::<HashSet<_>>().len()
    }

    /// The share of it that is not white.
    pub(crate) fn inked(&self) -> f64 {
        let inked = self.pixels.iter().filter(|pixel| **pixel != [255; 3]).count();
        inked as f64 / self.pixels.len().max(1) as f64
    }
}

/// Takes back the filters of each line (RFC 2083, section 6).
fn unfiltered(filtered: &[u8], length: usize, each: usize) -> Vec<u8> {
    let mut above = vec![0u8; length];
    let mut out = Vec::with_capacity(filtered.len());
    for line in filtered.chunks(length + 1) {
        let mut current = line[1..].to_vec();
        for at in 0..current.len() {
            let left = if at >= each { current[at - each] } else { 0 };
            let up = above[at];
            let corner = if at >= each { above[at - each] } else { 0 };
            let guess = match line[0] {
                0 => 0,
                1 => left,
                2 => up,
                3 => u8::midpoint(left, up),
                4 => paeth(left, up, corner),
                other => panic!("there is no filter {other}"),
            };
            current[at] = current[at].wrapping_add(guess);
        }
        out.extend_from_slice(&current);
        above = current;
    }
    out
}

fn paeth(left: u8, up: u8, corner: u8) -> u8 {
    let guess = i32::from(left) + i32::from(up) - i32::from(corner);
    let far = |from: u8| (guess - i32::from(from)).abs();
    if far(left) <= far(up) && far(left) <= far(corner) {
        left
    } else if far(up) <= far(corner) {
        up
    } else {
        corner
    }
}
