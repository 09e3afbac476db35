//! Parsers for the values of options; each one's error lists what the option takes.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use doorbell::oob::{Endpoint, OobError};
use doorbell_bench::plan::{RATE_MAX, RATE_MIN};
use doorbell_fabric::name::RailName;

/// A rail's name; the error names the nearest valid kind.
pub fn rail(text: &str) -> Result<RailName, String> {
    if text.contains(',') {
        return Err("give --rail once for each rail, and not several by commas".to_owned());
    }
    // In a URL an IPv6 address is in brackets; a rail's name has it bare.
    let bare = text
        .strip_prefix("udp:[")
        .and_then(|rest| rest.strip_suffix(']'))
        .map(|address| format!("udp:{address}"));
    let name = bare.as_deref().unwrap_or(text).parse();
    name.map_err(|error: doorbell_fabric::error::RailError| error.to_string())
}

/// An address; a bare one has the usual port.
pub fn endpoint(text: &str) -> Result<Endpoint, String> {
    text.parse().map_err(|error: OobError| error.to_string())
}

/// A time in seconds, above zero and at most a week.
pub fn seconds(text: &str) -> Result<f64, String> {
    time(text, 7.0 * 86_400.0, "a week")
}

/// A time in seconds, above zero and at most an hour.
pub fn an_hour(text: &str) -> Result<f64, String> {
    time(text, 3600.0, "an hour")
}

fn time(text: &str, most: f64, name: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= most => Ok(value),
        _ => Err(format!(
            "give seconds above 0 and at most {name}, such as 0.5 or 60"
        )),
    }
}

/// A share of what arrives, in percent.
pub fn percent(text: &str) -> Result<f64, String> {
    // The kernel's rule counts in tenths of a percent.
    let tenths = text.parse::<f64>().map(|value| value * 10.0);
    match tenths {
        Ok(value) if (1.0..=500.0).contains(&value) && (value - value.round()).abs() < 1e-6 => {
            Ok(value / 10.0)
        }
        _ => Err("give percent from 0.1 to 50 in steps of 0.1, such as 1 or 2.5".to_owned()),
    }
}

/// A whole number within a range.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("give a whole number from {} to {}", range.start(), range.end()))
    }
}

/// A rate: messages per second, with k, M or G.
pub fn per_second(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.char_indices().last() {
        Some((at, 'k')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let rate = number.parse::<f64>().ok().map(|number| number * factor);
    rate.filter(|rate| (RATE_MIN..=RATE_MAX).contains(rate))
        .ok_or_else(|| "give messages per second from 1 to 1G, such as 5000, 200k or 1.5M".to_owned())
}

/// The number of a process.
pub fn process(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        "give the number of a process, such as 4711; `doorbell counters` without one lists the ranks that run here"
            .to_owned()
    })
}

/// The address of a host, as a number.
pub fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| {
        "give an address and no name, such as 10.0.0.2 or fe80::1; `getent ahosts NAME` shows those of a name"
            .to_owned()
    })
}

/// Parses the number of a core.
pub fn core(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "give two cores by their numbers, as in `--cores 0,1`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_their_units() {
        for (text, rate) in [
            ("1", 1.0),
            ("2.5k", 2_500.0),
            ("1M", 1e6),
            ("1G", 1e9),
            ("5e3", 5e3),
        ] {
            assert_eq!(per_second(text), Ok(rate));
        }
        for text in ["", "k", "0", "-5", "2G", "NaN", "inf", "5m", "µ", "1 k"] {
            assert!(per_second(text).unwrap_err().contains("200k"), "{text}");
        }
    }
}
