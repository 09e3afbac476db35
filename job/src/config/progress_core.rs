//! The setting `progress.core`.

use super::value::{Value, nearest};
use crate::error::suggestion;

/// Which core a dedicated progress thread gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProgressCore {
    /// As [`ProgressCore::Next`] where the rank was given several cores of the machine; else any.
    #[default]
    Auto,
    /// Another whole core than that of the rank's own thread, among the rank's cores.
    Next,
    /// Another hardware thread of the whole core that the rank's own thread has.
    Sibling,
    /// This core, for each rank.
    Number(u32),
    /// One core for each rank of a host, in the order of its ranks.
    List(Vec<u32>),
}

impl ProgressCore {
    /// Returns the core that is named for the rank with this place among those of its host; `None` where no
    /// core is named.
    ///
    /// # Errors
    /// The length of a list that is too short for the rank.
    pub fn named(&self, place: u32) -> Result<Option<u32>, usize> {
        match self {
            Self::Auto | Self::Next | Self::Sibling => Ok(None),
            Self::Number(core) => Ok(Some(*core)),
            Self::List(cores) => match cores.get(place as usize) {
                Some(core) => Ok(Some(*core)),
                None => Err(cores.len()),
            },
        }
    }
}

/// The words of the setting.
const WORDS: [&str; 3] = ["auto", "next", "sibling"];

/// The longest list, and the highest number in one of its ranges: Linux has at most 8,192 cores.
const MOST: u32 = 8_192;

/// Parses `2,3,6` and `4-7`.
fn list(text: &str) -> Option<Vec<u32>> {
    let mut cores = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.split_once('-') {
            None => cores.push(part.parse().ok()?),
            Some((first, last)) => {
                let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
                if first > last || last >= MOST {
                    return None;
                }
                cores.extend(first..=last);
            }
        }
        if cores.len() > MOST as usize {
            return None;
        }
    }
    Some(cores)
}

impl Value for ProgressCore {
    const UNIT: &'static str = "auto|next|sibling|a core, or one for each rank of the host";

    fn read(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "" | "auto" => Ok(Self::Auto),
            "next" => Ok(Self::Next),
            "sibling" => Ok(Self::Sibling),
            other => match list(other).as_deref() {
                Some(&[core]) => Ok(Self::Number(core)),
                Some(cores) => Ok(Self::List(cores.to_vec())),
                None => Err(format!(
                    "next, sibling, auto, a core's number, or one for each rank of the host as in \
                     `2,3` or `4-7`{}",
                    suggestion(nearest(other, WORDS.into_iter()))
                )),
            },
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Next => "next".to_owned(),
            Self::Sibling => "sibling".to_owned(),
            Self::Number(core) => core.to_string(),
            Self::List(cores) => {
                let cores: Vec<String> = cores.iter().map(u32::to_string).collect();
                cores.join(",")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_lists_are_read_as_they_are_shown() {
        for text in ["auto", "next", "sibling", "3", "4,2,6"] {
            assert_eq!(ProgressCore::read(text).unwrap().show(), text);
        }
        assert_eq!(ProgressCore::read("2,4-6").unwrap().show(), "2,4,5,6");
        assert_eq!(ProgressCore::read("").unwrap(), ProgressCore::Auto);
        let error = ProgressCore::read("sibbling").unwrap_err();
        assert!(error.contains("nearest is `sibling`"), "{error}");
        assert!(ProgressCore::read(&"1,".repeat(9_000)).is_err());
    }

    #[test]
    fn a_list_has_a_core_for_each_place() {
        let list = ProgressCore::read("4,2").unwrap();
        assert_eq!(
            (list.named(0), list.named(1), list.named(2)),
            (Ok(Some(4)), Ok(Some(2)), Err(2))
        );
        assert_eq!(ProgressCore::Number(7).named(9), Ok(Some(7)));
        assert_eq!(ProgressCore::Next.named(0), Ok(None));
    }
}
