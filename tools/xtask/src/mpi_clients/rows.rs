//! The rows that programs of MPI print: `row KIND name=value ...`.

/// Returns the rows of a kind, without its name.
pub(super) fn of<'t>(text: &'t str, kind: &str) -> impl Iterator<Item = &'t str> {
    let begin = format!("row {kind} ");
    text.lines()
        .filter_map(move |line| line.trim().strip_prefix(begin.as_str()))
}

/// Returns a finite number of a row by its name.
pub(super) fn number(row: &str, name: &str) -> Option<f64> {
    let mut words = row.split_whitespace();
    let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
    value.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_by_their_names() {
        let text = "library x\nrow latency bytes=8 mean_ns=484.04 p99_ns=- max_ns=nan\nrow stream bytes=9\n";
        let rows: Vec<&str> = of(text, "latency").collect();
        assert_eq!(rows.len(), 1);
        assert_eq!(number(rows[0], "mean_ns"), Some(484.04));
        assert_eq!(number(rows[0], "bytes"), Some(8.0));
        for name in ["p99_ns", "max_ns", "ns", "mean"] {
            assert_eq!(number(rows[0], name), None, "{name}");
        }
    }
}
