//! A process's card, which it sends to another one when they meet: one JSON message, not trusted until it is
//! checked.

use doorbell_fabric::ni::Process;
use serde::{Deserialize, Serialize};

use super::address::{PeerId, Token};
use crate::meet::tcp::shown;
use crate::meet::{Key, MOST_RAILS, RankInfo};

/// Longest card, in bytes.
pub(super) const LONGEST: usize = 64 << 10;

/// The name under which a process can be reached on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Name {
    /// A process id that a Portals program names.
    Process(Process),
    /// A random name, with a token that a caller has to have.
    Peer(PeerId),
}

impl Name {
    /// Returns the token that a caller has to have, where one is needed.
    fn token(&self) -> Option<Token> {
        match self {
            Self::Process(_) => None,
            Self::Peer(peer) => Some(peer.token()),
        }
    }

    /// Whether a caller that named this token may have an answer.
    fn admits(&self, token: Option<&Token>) -> bool {
        match self {
            Self::Process(_) => true,
            Self::Peer(peer) => token.is_some_and(|token| peer.has_token(token)),
        }
    }

    /// Whether a process of the other name may be met: it has a name of the same kind, on the same host.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Process(one), Self::Process(other)) => one.nid == other.nid,
            (Self::Peer(one), Self::Peer(other)) => one.host() == other.host(),
            _ => false,
        }
    }
}

/// Why bytes are no card for this process.
#[derive(Debug, PartialEq)]
pub(super) enum Bad {
    /// They are no card at all.
    Nonsense(String),
    /// It calls another process than this one.
    Token,
    /// It is a card of a process that cannot be met: another version, or unlike settings.
    Unlike(String),
}

impl Bad {
    /// Returns the reason in words.
    pub(super) fn text(self) -> String {
        match self {
            Self::Nonsense(text) | Self::Unlike(text) => text,
            Self::Token => "it is for another process".to_owned(),
        }
    }
}

/// What another process needs to open this one.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    pub(super) name: Name,
    /// The sender's number of its acquaintance with the receiver: another one is another acquaintance.
    pub(super) bond: u64,
    /// Its rails, and the settings that both ends must have alike. The ranks in it have no meaning here.
    pub(super) info: RankInfo,
    /// The key of the connections with it, where the two have agreed on one. It is not on the card.
    pub(super) key: Option<Key>,
    /// The name by which its sender knows this process, where that is not the one of its desk. It is not on
    /// the card.
    pub(super) toward: Option<Name>,
}

/// A card as it is written.
#[derive(Serialize, Deserialize)]
struct Written {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    process: Option<[u32; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer: Option<PeerId>,
    #[serde(default)]
    bond: u64,
    /// The token of the process that is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<Token>,
    hello: RankInfo,
}

impl Card {
    pub(super) fn new(name: Name, info: RankInfo) -> Self {
        Self {
            name,
            bond: 0,
            info,
            key: None,
            toward: None,
        }
    }

    /// Returns the id of the card's process; `None` for one that has a random name.
    pub fn process(&self) -> Option<Process> {
        match self.name {
            Name::Process(process) => Some(process),
            Name::Peer(_) => None,
        }
    }

    /// Writes the card, as a call `to` a process or as an answer, with the sender's number of the
    /// acquaintance.
    pub(super) fn written(&self, to: Option<&Name>, bond: u64) -> Result<Vec<u8>, String> {
        let (process, peer) = match self.name {
            Name::Process(Process { nid, pid }) => (Some([nid, pid]), None),
            Name::Peer(peer) => (None, Some(peer)),
        };
        let written = Written {
            process,
            peer,
            bond,
            to: to.and_then(Name::token),
            hello: self.info.clone(),
        };
        let bytes = serde_json::to_vec(&written).map_err(|error| error.to_string())?;
        if bytes.len() > LONGEST {
            return Err(format!("this process's card is {} bytes long", bytes.len()));
        }
        Ok(bytes)
    }

    /// Parses a card that calls this process.
    pub(super) fn read_call(bytes: &[u8], ours: &Self) -> Result<Self, Bad> {
        Self::parse(bytes, ours, |token| ours.name.admits(token))
    }

    /// Parses a card that answers a call of this process.
    pub(super) fn read(bytes: &[u8], ours: &Self) -> Result<Self, Bad> {
        Self::parse(bytes, ours, |_| true)
    }

    /// Parses a card. In steps, since only the version and the token of another version's card are
    /// understood.
    fn parse(bytes: &[u8], ours: &Self, admits: impl Fn(Option<&Token>) -> bool) -> Result<Self, Bad> {
        if bytes.len() > LONGEST {
            return Err(Bad::Nonsense(format!("it is {} bytes long", bytes.len())));
        }
        let bad = |error: serde_json::Error| {
            Bad::Nonsense(format!("it does not parse: {}", shown(&error.to_string())))
        };
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(bad)?;
        let token = value.get("to").and_then(|to| Token::deserialize(to).ok());
        if !admits(token.as_ref()) {
            return Err(Bad::Token);
        }
        let text = |at: &str| value.pointer(at).and_then(serde_json::Value::as_str);
        if let Some(version) = text("/hello/version").filter(|version| *version != ours.info.version) {
            return Err(Bad::Unlike(other_version(
                version,
                text("/hello/program"),
                &ours.info,
            )));
        }
        let Written {
            process,
            peer,
            bond,
            hello: info,
            ..
        } = serde_json::from_value(value).map_err(bad)?;
        let name = match (process, peer) {
            (Some([nid, pid]), None) => Name::Process(Process::physical(nid, pid)),
            (None, Some(peer)) => Name::Peer(peer),
            _ => return Err(Bad::Nonsense("it names no process, or two".to_owned())),
        };
        let card = Self {
            name,
            bond,
            info,
            key: None,
            toward: None,
        };
        card.check(ours).map_err(Bad::Unlike)?;
        Ok(card)
    }

    /// Returns what keeps the two from meeting, if anything does.
    fn check(&self, ours: &Self) -> Result<(), String> {
        for (name, value) in &ours.info.agreed {
            let theirs = self.info.agreed.get(name).map_or("unknown", String::as_str);
            if theirs != value {
                return Err(format!("{name} is {theirs} there and {value} here"));
            }
        }
        match self.info.rails.len() {
            many if many > MOST_RAILS => Err(format!(
                "it has {many} rails, and a process may have {MOST_RAILS}: name those to be used"
            )),
            _ => Ok(()),
        }
    }

    /// Returns both entries with ranks that are in the same order at both ends, which the choice of rails
    /// needs.
    pub(super) fn ranked(&self, other: &Self) -> (RankInfo, RankInfo) {
        let (mut own, mut theirs) = (self.info.clone(), other.info.clone());
        let lower = other.toward.unwrap_or(self.name) < other.name;
        (own.rank, theirs.rank) = if lower { (0, 1) } else { (1, 0) };
        (own, theirs)
    }
}

/// Describes a process that runs another version, with both programs where the other one has named its own.
fn other_version(version: &str, program: Option<&str>, ours: &RankInfo) -> String {
    let shown = |text: &str, most: usize| -> String {
        text.chars()
            .filter(|letter| !letter.is_control())
            .take(most)
            .collect()
    };
    let version = shown(version, 20);
    let by = program.map_or_else(String::new, |program| format!(" ({})", shown(program, 200)));
    let own = if by.is_empty() {
        String::new()
    } else {
        format!(" ({})", ours.program)
    };
    format!(
        "it runs doorbell {version}{by}, this process {}{own}",
        ours.version
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_change_of_a_call_gets_past_the_token(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in any::<prop::sample::Index>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let (ours, theirs) = (of_peer(1), of_peer(2));
            let call = theirs.written(Some(&of_peer(3).name), 44).unwrap();
            let mut changed = call.clone();
            for (at, byte) in changes {
                changed[at.index(call.len())] = byte;
            }
            for bytes in [&changed, &changed[..cut.index(call.len())].to_vec(), &bytes] {
                // Whatever it is, it is refused in words that can be shown.
                let refusal = Card::read_call(bytes, &ours).unwrap_err();
                prop_assert!(!refusal.text().contains(char::is_control));
            }
            // With the token, a change never makes it another peer's of another host.
            let mut called = theirs.written(Some(&ours.name), 44).unwrap();
            let at = cut.index(called.len());
            called[at] ^= 1;
            if let Ok(card) = Card::read_call(&called, &ours) {
                prop_assert!(card.info.rails.len() <= MOST_RAILS);
            }
        }
    }

    fn card(pid: u32) -> Card {
        let info = RankInfo::of_this_process(0, 1, BTreeMap::new(), Vec::new()).unwrap();
        Card::new(Name::Process(Process::physical(7, pid)), info)
    }

    fn of_peer(number: u8) -> Card {
        let name = Name::Peer(PeerId::new(9, &[number; 24]));
        Card { name, ..card(1) }
    }

    #[test]
    fn a_card_comes_back_as_it_was_written() {
        let (ours, theirs) = (card(1), card(2));
        let read = Card::read(&theirs.written(None, 0).unwrap(), &ours).unwrap();
        assert_eq!(read, theirs);
        assert_eq!(read.process(), Some(Process::physical(7, 2)));
        let (one, two) = (ours.ranked(&theirs), theirs.ranked(&ours));
        assert_eq!((one.0.rank, one.1.rank), (0, 1));
        assert_eq!((two.0.rank, two.1.rank), (1, 0));
    }

    #[test]
    fn only_a_call_with_the_token_is_for_this_process() {
        let (ours, theirs) = (of_peer(1), of_peer(2));
        let call = theirs.written(Some(&ours.name), 44).unwrap();
        let read = Card::read_call(&call, &ours).unwrap();
        assert_eq!((read.name, read.bond), (theirs.name, 44));
        assert!(ours.name.is_beside(&read.name) && !ours.name.is_beside(&card(1).name));
        for call in [
            theirs.written(None, 44).unwrap(),
            theirs.written(Some(&of_peer(3).name), 44).unwrap(),
            card(3).written(Some(&card(4).name), 0).unwrap(),
            b"{\"to\": [1, 2]}".to_vec(),
        ] {
            assert_eq!(Card::read_call(&call, &ours), Err(Bad::Token));
        }
        // An answer needs none: its reader has called.
        assert_eq!(
            Card::read(&theirs.written(None, 0).unwrap(), &ours).unwrap().bond,
            0
        );
    }

    #[test]
    fn what_is_no_card_or_does_not_fit_is_refused_in_words() {
        let mut ours = card(1);
        ours.info.agreed.insert("btl.window".to_owned(), "64".to_owned());
        let mut other = card(2);
        other.info.version = "9.9\u{1b}".to_owned();
        other.info.program = "/opt/other".to_owned();
        let written = |card: Card| card.written(None, 0).unwrap();
        let mut nameless = serde_json::from_slice::<serde_json::Value>(&written(card(2))).unwrap();
        nameless.as_object_mut().unwrap().remove("process");
        for (bytes, word) in [
            (b"".to_vec(), "does not parse"),
            (b"\xff{}".to_vec(), "does not parse"),
            (b"{\"process\": [3, 4]}".to_vec(), "does not parse"),
            (vec![b' '; LONGEST + 1], "bytes long"),
            (written(other), "it runs doorbell 9.9 (/opt/other), this"),
            (nameless.to_string().into_bytes(), "names no process"),
            (written(card(2)), "btl.window is unknown there and 64 here"),
        ] {
            let text = Card::read(&bytes, &ours).unwrap_err().text();
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
