//! Credits at the start by the size of the job: the table of gasnet.md section 6.

use super::config::Chunk;

/// Up to this many processes: credits for each other process, and in the bank.
type Row = (u32, u16, u32);

const SMALL: [Row; 10] = [
    (1, 200, 400),
    (64, 170, 25_600),
    (128, 170, 51_200),
    (512, 64, 51_200),
    (1024, 32, 51_200),
    (2048, 16, 51_200),
    (3072, 12, 51_200),
    (4096, 8, 51_200),
    (5120, 4, 51_200),
    (20_480, 4, 51_200),
];

const LARGE: [Row; 10] = [
    (1, 200, 200),
    (64, 170, 12_800),
    (128, 170, 25_600),
    (512, 64, 25_600),
    (1024, 32, 25_600),
    (2048, 16, 25_600),
    (3072, 12, 25_600),
    (4096, 8, 25_600),
    (5120, 8, 25_600),
    (20_480, 8, 25_600),
];

/// Credits for each other process, and in the bank: interpolated linearly between two rows, rounded down;
/// beyond the last row as in it.
pub fn defaults(nodes: u32, chunk: Chunk) -> (u16, u32) {
    let rows = match chunk {
        Chunk::Small => &SMALL,
        Chunk::Large => &LARGE,
    };
    let above = rows.partition_point(|row| row.0 < nodes);
    let (Some(&high), Some(&low)) = (rows.get(above), rows.get(above.saturating_sub(1))) else {
        let last = rows[rows.len() - 1];
        return (last.1, last.2);
    };
    let per_node = between(nodes, (low.0, low.1.into()), (high.0, high.1.into()));
    // Between two numbers of 16 bits.
    (per_node as u16, between(nodes, (low.0, low.2), (high.0, high.2)))
}

fn between(nodes: u32, low: (u32, u32), high: (u32, u32)) -> u32 {
    let (width, along) = (u64::from(high.0 - low.0), u64::from(nodes.max(low.0) - low.0));
    if width == 0 {
        return low.1;
    }
    ((u64::from(low.1) * (width - along) + u64::from(high.1) * along) / width) as u32
}
