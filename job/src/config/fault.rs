//! The faults to inject: which rail breaks, and when. A test aid, which `job/src/rails/fault_rail.rs` carries
//! out.

use std::fmt;

use doorbell_fabric::name::RailName;

use super::value::Value;

/// The word for "while this rank reads or writes the peer's memory".
const RENDEZVOUS: &str = "rendezvous";

/// The point at which a rail breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// After this many messages, those sent and those received together.
    Messages(u64),
    /// In the middle of a read or write of a peer's memory by this rank.
    Rendezvous,
}

/// One fault of a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The name of the rail at this end.
    pub rail: RailName,
    /// When the rail breaks.
    pub when: When,
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.when {
            When::Messages(count) => write!(out, "{}:{count}", self.rail),
            When::Rendezvous => write!(out, "{}:{RENDEZVOUS}", self.rail),
        }
    }
}

/// The faults, in order; each fault of a rail counts from the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(out, "{comma}{fault}")?;
        }
        Ok(())
    }
}

impl Value for Faults {
    const UNIT: &'static str = "RAIL:N|RAIL:rendezvous, comma-separated";

    fn read(text: &str) -> Result<Self, String> {
        let faults = text.split(',').map(str::trim).filter(|fault| !fault.is_empty());
        faults
            .map(read)
            .collect::<Option<_>>()
            .map(Self)
            .ok_or_else(expected)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// Parses one fault. Names of rails contain colons too: the point of the fault follows the last one.
fn read(text: &str) -> Option<Fault> {
    let (rail, when) = text.rsplit_once(':')?;
    let when = match when {
        RENDEZVOUS => When::Rendezvous,
        count => When::Messages(count.parse().ok().filter(|count| *count > 0)?),
    };
    let rail = rail.parse().ok()?;
    Some(Fault { rail, when })
}

fn expected() -> String {
    "rails with the message after which each breaks, such as `shm:2000`, or `shm:rendezvous`".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_a_rail_and_a_moment() {
        let faults = Faults::read("shm:2000, udp:fd77::1:7,shm:rendezvous").unwrap();
        assert_eq!(faults.show(), "shm:2000,udp:fd77::1:7,shm:rendezvous");
        assert_eq!(faults.0[1].rail.object(), "fd77::1");
        assert_eq!(faults.0[2].when, When::Rendezvous);
        assert_eq!(Faults::read("").unwrap(), Faults::default());
        for bad in ["shm", "shm:", "shm:0", "shm:-1", ":7", "smh:7", "shm:soon", "7"] {
            assert!(Faults::read(bad).is_err(), "{bad}");
        }
    }
}
