//! The maximum-weight matching of two lists; among equal ones, the first by the left side's preferences.
//!
//! Two steps, each at most cubic. The Hungarian method with potentials (Kuhn, Munkres) finds one heaviest
//! matching, and potentials: a lower bound of the cost of each row and column together. A pair whose cost
//! equals it is *tight*, and the heaviest matchings are exactly those of tight pairs alone. So the first of
//! them is found by exchanges: each row in turn takes the first tight column that it can have while the later
//! rows move along tight pairs.

/// Returns for each row its column in the first of the heaviest matchings, if it has one. A `weight` of zero
/// is no pair.
pub(super) fn first_of_the_heaviest(
    rows: usize,
    columns: usize,
    weight: impl Fn(usize, usize) -> i64,
) -> Vec<Option<usize>> {
    // Pad with dummy rows and columns, so that an unmatched rail pairs with a dummy.
    let cost = |row: usize, column: usize| match (row < rows, column < columns) {
        // More expensive than two dummies, and so in no matching that counts.
        (true, true) => Some(weight(row, column))
            .filter(|weight| *weight > 0)
            .map_or(1, |weight| -weight),
        _ => 0,
    };
    let mut solved = Solved::by_prices(rows + columns, cost);
    (0..rows)
        .map(|row| {
            let wanted = |column: &usize| *column < columns;
            solved.choose(row, cost, wanted).filter(wanted)
        })
        .collect()
}

/// A matching of least cost between as many rows as columns, and the prices that prove it.
struct Solved {
    row_of: Vec<usize>,
    column_of: Vec<usize>,
    row_price: Vec<i64>,
    column_price: Vec<i64>,
}

impl Solved {
    /// The Hungarian method: row by row, each placed along the cheapest path of exchanges.
    fn by_prices(size: usize, cost: impl Fn(usize, usize) -> i64) -> Self {
        let (mut row_price, mut column_price) = (vec![0i64; size], vec![0i64; size + 1]);
        // The last column is a sentinel: it holds the row that is being placed.
        let mut holder: Vec<Option<usize>> = vec![None; size + 1];
        for row in 0..size {
            holder[size] = Some(row);
            let (mut least, mut from) = (vec![i64::MAX; size], vec![size; size]);
            let mut done = vec![false; size + 1];
            let mut at = size;
            while let Some(here) = holder[at] {
                done[at] = true;
                let (mut step, mut next) = (i64::MAX, at);
                for column in (0..size).filter(|&column| !done[column]) {
                    let over = cost(here, column) - row_price[here] - column_price[column];
                    if over < least[column] {
                        (least[column], from[column]) = (over, at);
                    }
                    if least[column] < step {
                        (step, next) = (least[column], column);
                    }
                }
                for (column, holder) in holder.iter().enumerate() {
                    match holder {
                        Some(row) if done[column] => {
                            row_price[*row] += step;
                            column_price[column] -= step;
                        }
                        _ if column < size => least[column] -= step,
                        _ => {}
                    }
                }
                at = next;
            }
            while at != size {
                holder[at] = holder[from[at]];
                at = from[at];
            }
        }
        column_price.truncate(size);
        let row_of: Vec<usize> = holder.into_iter().take(size).flatten().collect();
        let mut column_of = vec![0; size];
        row_of
            .iter()
            .enumerate()
            .for_each(|(column, row)| column_of[*row] = column);
        Self {
            row_of,
            column_of,
            row_price,
            column_price,
        }
    }

    /// Gives `row` the first of its preferred columns that costs the whole nothing, while all rows before it
    /// keep theirs; otherwise it stays. Returns its column.
    fn choose(
        &mut self,
        row: usize,
        cost: impl Fn(usize, usize) -> i64,
        wanted: impl Fn(&usize) -> bool,
    ) -> Option<usize> {
        let size = self.row_of.len();
        let tight = |this: &Self, row: usize, column: usize| {
            cost(row, column) == this.row_price[row] + this.column_price[column]
        };
        // Backwards from the column that would become free: for each later row that can get there, its next
        // column.
        let mut next: Vec<Option<usize>> = vec![None; size];
        let mut freed = vec![self.column_of[row]];
        while let Some(column) = freed.pop() {
            let gets_there = |&other: &usize| next[other].is_none() && tight(self, other, column);
            let these: Vec<usize> = (row + 1..size).filter(gets_there).collect();
            for other in these {
                next[other] = Some(column);
                freed.push(self.column_of[other]);
            }
        }
        let can_have = |&column: &usize| {
            column == self.column_of[row] || (next[self.row_of[column]].is_some() && tight(self, row, column))
        };
        let choice = (0..size).filter(wanted).find(can_have)?;
        let (mut mover, mut to) = (row, choice);
        // A row displaced from a column takes its next one, up to the column that became free.
        loop {
            let out = self.row_of[to];
            (self.row_of[to], self.column_of[mover]) = (mover, to);
            match next[out] {
                Some(column) if out != row => (mover, to) = (out, column),
                _ => return Some(choice),
            }
        }
    }
}
