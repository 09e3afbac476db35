//! A process's card, which it sends to another one when they meet: one JSON message, not trusted until it is
//! checked.

use doorbell_fabric::ni::Process;
use serde::{Deserialize, Serialize};

use crate::meet::RankInfo;

/// Longest card, in bytes.
pub(super) const LONGEST: usize = 64 << 10;

/// What another process needs to open this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Card {
    nid: u32,
    pid: u32,
    /// Its rails, and the settings that both ends must have alike. The ranks in it have no meaning here.
    #[serde(rename = "hello")]
    pub(super) info: RankInfo,
}

impl Card {
    pub(super) fn new(process: Process, info: RankInfo) -> Self {
        Self {
            nid: process.nid,
            pid: process.pid,
            info,
        }
    }

    /// Returns the id of the card's process.
    pub fn process(&self) -> Process {
        Process::physical(self.nid, self.pid)
    }

    pub(super) fn written(&self) -> Result<Vec<u8>, String> {
        let bytes = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        if bytes.len() > LONGEST {
            return Err(format!("this process's card is {} bytes long", bytes.len()));
        }
        Ok(bytes)
    }

    /// Parses a card. In two steps, since only the version of another version's card is understood.
    pub(super) fn read(bytes: &[u8], ours: &Self) -> Result<Self, String> {
        if bytes.len() > LONGEST {
            return Err(format!("it is {} bytes long", bytes.len()));
        }
        let bad = |error: serde_json::Error| format!("it does not parse: {error}");
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(bad)?;
        let version = value
            .pointer("/hello/version")
            .and_then(serde_json::Value::as_str);
        if let Some(version) = version.filter(|version| *version != ours.info.version) {
            let shown: String = version.chars().filter(char::is_ascii_graphic).take(20).collect();
            return Err(format!(
                "it runs doorbell {shown}, this process {}",
                ours.info.version
            ));
        }
        let card: Self = serde_json::from_value(value).map_err(bad)?;
        for (name, value) in &ours.info.agreed {
            let theirs = card.info.agreed.get(name).map_or("unknown", String::as_str);
            if theirs != value {
                return Err(format!("{name} is {theirs} there and {value} here"));
            }
        }
        Ok(card)
    }

    /// Returns both entries with ranks that are in the same order at both ends, which the choice of rails
    /// needs.
    pub(super) fn ranked(&self, other: &Self) -> (RankInfo, RankInfo) {
        let (mut own, mut theirs) = (self.info.clone(), other.info.clone());
        let lower = self.process() < other.process();
        (own.rank, theirs.rank) = if lower { (0, 1) } else { (1, 0) };
        (own, theirs)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn card(pid: u32) -> Card {
        let info = RankInfo::of_this_process(0, 1, BTreeMap::new(), Vec::new()).unwrap();
        Card::new(Process::physical(7, pid), info)
    }

    #[test]
    fn a_card_comes_back_as_it_was_written() {
        let (ours, theirs) = (card(1), card(2));
        let read = Card::read(&theirs.written().unwrap(), &ours).unwrap();
        assert_eq!(read, theirs);
        assert_eq!(read.process(), Process::physical(7, 2));
        let (one, two) = (ours.ranked(&theirs), theirs.ranked(&ours));
        assert_eq!((one.0.rank, one.1.rank), (0, 1));
        assert_eq!((two.0.rank, two.1.rank), (1, 0));
    }

    #[test]
    fn what_is_no_card_or_does_not_fit_is_refused_in_words() {
        let mut ours = card(1);
        ours.info.agreed.insert("btl.window".to_owned(), "64".to_owned());
        let mut other = card(2);
        other.info.version = "9.9\u{1b}".to_owned();
        for (bytes, word) in [
            (b"".to_vec(), "does not parse"),
            (b"\xff{}".to_vec(), "does not parse"),
            (b"{\"nid\": 3}".to_vec(), "does not parse"),
            (vec![b' '; LONGEST + 1], "bytes long"),
            (other.written().unwrap(), "it runs doorbell 9.9, this"),
            (
                card(2).written().unwrap(),
                "btl.window is unknown there and 64 here",
            ),
        ] {
            let text = Card::read(&bytes, &ours).unwrap_err();
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
