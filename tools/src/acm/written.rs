//! Addresses as people write them: `10.0.0.1`, `fe80::1`, `node3`, `node[1-16]`, `10.0.0.[1-3,7]`.

use std::net::IpAddr;

use doorbell_acm::address::{Address, Name};

use super::args::Format;
use crate::error::ToolError;

/// Addresses that one word may stand for, at most.
const MOST: usize = 65_536;

/// All addresses that words stand for, in order.
///
/// # Errors
/// With the word, and what is wrong with it.
pub(super) fn all(words: &[String], format: Format) -> Result<Vec<Address>, ToolError> {
    let mut found = Vec::new();
    for word in words {
        for one in expand(word).map_err(|why| usage(word, &why))? {
            found.push(address(&one, format)?);
        }
    }
    Ok(found)
}

/// One address.
///
/// # Errors
/// With the word, and what is wrong with it.
pub(super) fn address(word: &str, format: Format) -> Result<Address, ToolError> {
    let ip = || {
        word.parse::<IpAddr>()
            .map(Address::from)
            .map_err(|error| error.to_string())
    };
    let name = || {
        Name::new(word)
            .map(Address::Name)
            .map_err(|error| error.to_string())
    };
    let found = match format {
        Format::Any => ip().or_else(|_| name()),
        Format::Ip => ip(),
        Format::Name => name(),
        Format::Gid => word
            .parse()
            .map(Address::Gid)
            .map_err(|_| "it is no GID".to_owned()),
        Format::Lid => {
            lid(word).ok_or_else(|| "it is no LID: a number from 1 to 65535, or 0x1 to 0xffff".to_owned())
        }
    };
    found.map_err(|why| usage(word, &why))
}

fn lid(word: &str) -> Option<Address> {
    let number = match word.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    };
    number.filter(|lid| *lid != 0).map(Address::Lid)
}

fn usage(word: &str, why: &str) -> ToolError {
    ToolError::Usage(format!(
        "`{word}` is no address: {why}; give a name, an IPv4 or IPv6 address, or several as in `node[1-16]`"
    ))
}

/// What a word with ranges in brackets stands for. An IPv6 address has no brackets, so they always are a range.
fn expand(word: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = word.split_once('[') else {
        return Ok(vec![word.to_owned()]);
    };
    let (ranges, after) = rest.split_once(']').ok_or("its bracket does not close")?;
    let mut found = Vec::new();
    let tails = expand(after)?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            text.parse::<u32>()
                .map_err(|_| format!("`{range}` is no range of numbers"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("`{range}` ends before it begins"));
        }
        if (to - from) as usize >= MOST {
            return Err(format!("`{range}` has more than {MOST} numbers"));
        }
        // `node[01-16]`: as many digits as the first one has.
        let width = first.len();
        for number in from..=to {
            found.extend(tails.iter().map(|tail| format!("{before}{number:0width$}{tail}")));
            if found.len() > MOST {
                return Err(format!("it stands for more than {MOST} addresses"));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_all_their_numbers() {
        let of = |word: &str| expand(word).unwrap().join(" ");
        assert_eq!(of("node3"), "node3");
        assert_eq!(of("node[1-3]"), "node1 node2 node3");
        assert_eq!(of("node[08-10]x"), "node08x node09x node10x");
        assert_eq!(of("10.0.[1,3].[7-8]"), "10.0.1.7 10.0.1.8 10.0.3.7 10.0.3.8");
        for bad in [
            "node[",
            "node[]",
            "node[3-1]",
            "node[a-b]",
            "node[1-]",
            "a[0-99999]",
            "a[1-999][1-999]",
        ] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_are_what_they_look_like_unless_it_is_said() {
        let of = |word: &str, format| address(word, format).map_err(|error| error.to_string());
        assert!(matches!(of("10.0.0.1", Format::Any), Ok(Address::V4(_))));
        assert!(matches!(of("fe80::1", Format::Any), Ok(Address::V6(_))));
        assert!(matches!(of("node1", Format::Any), Ok(Address::Name(_))));
        assert!(matches!(of("10.0.0.1", Format::Name), Ok(Address::Name(_))));
        assert!(matches!(of("fe80::1", Format::Gid), Ok(Address::Gid(_))));
        assert_eq!(of("0x10", Format::Lid), Ok(Address::Lid(16)));
        for (bad, format) in [
            ("", Format::Any),
            ("a b", Format::Any),
            ("node1", Format::Ip),
            ("0", Format::Lid),
        ] {
            let error = of(bad, format).unwrap_err();
            assert!(error.contains("is no address"), "{error}");
        }
    }
}
