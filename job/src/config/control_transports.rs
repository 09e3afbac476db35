//! The setting `control.transports`.

use super::value::{Value, nearest};
use crate::error::suggestion;

/// What carries the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTransport {
    /// Connections over the interfaces of `control.nics`.
    Tcp,
    /// Rails of the control plane's own, which `control.rails` names.
    Rail,
}

impl ControlTransport {
    const ALL: [Self; 2] = [Self::Tcp, Self::Rail];

    /// Returns the word of the setting, which is also the transport's name in contacts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rail => "rail",
        }
    }
}

/// The transports of the control plane, the preferred one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlTransports(Vec<ControlTransport>);

impl ControlTransports {
    /// Returns them, the preferred one first.
    pub fn all(&self) -> &[ControlTransport] {
        &self.0
    }

    /// Whether this one is among them.
    pub fn has(&self, transport: ControlTransport) -> bool {
        self.0.contains(&transport)
    }
}

impl Default for ControlTransports {
    fn default() -> Self {
        Self(vec![ControlTransport::Tcp])
    }
}

impl Value for ControlTransports {
    const UNIT: &'static str = "tcp|rail|tcp,rail|rail,tcp";

    fn read(text: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        for word in text.split(',').map(|word| word.trim().to_ascii_lowercase()) {
            let known = ControlTransport::ALL
                .into_iter()
                .find(|known| known.word() == word);
            match known {
                Some(known) if all.contains(&known) => {
                    return Err(format!("each transport once, but `{word}` stands twice"));
                }
                Some(known) => all.push(known),
                None => {
                    let words = ControlTransport::ALL.map(ControlTransport::word);
                    return Err(format!(
                        "tcp, rail, or both with the preferred one first, as in `tcp,rail`{}",
                        suggestion(nearest(&word, words.into_iter()))
                    ));
                }
            }
        }
        Ok(Self(all))
    }

    fn show(&self) -> String {
        self.0.iter().map(|one| one.word()).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_read_as_they_are_shown_and_others_refused() {
        for text in ["tcp", "rail", "tcp,rail", "rail,tcp"] {
            assert_eq!(ControlTransports::read(text).unwrap().show(), text);
        }
        assert_eq!(ControlTransports::read(" Rail, TCP ").unwrap().show(), "rail,tcp");
        for (bad, why) in [
            ("", "tcp, rail"),
            ("tcp,", "tcp, rail"),
            ("tcp,tcp", "stands twice"),
            ("rial", "nearest is `rail`"),
        ] {
            let error = ControlTransports::read(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
        let default = ControlTransports::default();
        assert!(default.has(ControlTransport::Tcp) && !default.has(ControlTransport::Rail));
    }
}
