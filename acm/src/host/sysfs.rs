//! Small files of sysfs, of which a bounded part is read.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Maximum bytes read of a file.
const MOST: u64 = 4096;
/// Maximum entries read of a folder.
const ENTRIES: usize = 4096;

/// Returns the trimmed text of a file; `None` if it is missing, empty or unreadable.
pub(super) fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// Returns the number in a file, decimal or hexadecimal with `0x`.
pub(super) fn number(path: &Path) -> Option<u64> {
    let text = text(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the names in a folder in natural order: `2` before `10`.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries
        .take(ENTRIES)
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
    names
}

/// Returns the speed of an interface (Mb/s), if it reports one: many virtual ones report -1.
pub(super) fn speed(sys: &Path, interface: &str) -> Option<u32> {
    let text = text(&sys.join("class/net").join(interface).join("speed"))?;
    text.parse().ok().filter(|megabits| *megabits > 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn speeds_are_reported_or_not() {
        let sys = tempfile::tempdir().unwrap();
        let folder = sys.path().join("class/net/eth0");
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(speed(sys.path(), "eth0"), None);
        for (text, told) in [
            ("25000\n", Some(25_000)),
            ("-1\n", None),
            ("0\n", None),
            ("", None),
        ] {
            fs::write(folder.join("speed"), text).unwrap();
            assert_eq!(speed(sys.path(), "eth0"), told, "{text:?}");
        }
        fs::write(folder.join("speed"), "9".repeat(10_000)).unwrap();
        assert_eq!(speed(sys.path(), "eth0"), None);
    }

    #[test]
    fn names_are_in_the_order_in_which_people_count() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["10", "2", "b"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(names(folder.path()), ["2", "10", "b"]);
        assert!(names(&folder.path().join("no")).is_empty());
    }
}
