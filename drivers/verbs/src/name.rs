//! Names of rails over queue pairs: `verbs:DEVICE:PORT`, and `verbs:DEVICE:PORT:ud` for datagrams.

use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::unusable;

/// What a rail's queue pairs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The device acknowledges and retransmits, over one reliable connection per peer.
    Connections,
    /// The device sends unreliable datagrams, and software above it retransmits.
    Datagrams,
}

/// A port, and what it is used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// The device: `mlx5_0`.
    pub device: String,
    /// The port, counted from 1.
    pub port: u8,
    /// What its queue pairs do.
    pub service: Service,
}

impl PortName {
    /// Reads a rail's name.
    ///
    /// # Errors
    /// If it is none of this kind, with how they look.
    pub fn of(name: &RailName) -> Result<Self, RailError> {
        let bad = |reason: &str| {
            unusable(
                name,
                reason,
                "name verbs:DEVICE:PORT, or verbs:DEVICE:PORT:ud for datagrams, as `doorbell info` lists them: \
                 verbs:mlx5_0:1",
            )
        };
        if name.kind() != "verbs" {
            return Err(bad("it is no verbs rail"));
        }
        let mut parts = name.object().split(':');
        let device = parts.next().filter(|device| !device.is_empty());
        let device = device.ok_or_else(|| bad("it names no device"))?;
        let port = parts.next().ok_or_else(|| bad("it names no port"))?;
        let port: u8 = port
            .parse()
            .map_err(|_| bad("its port is no number from 1 to 255"))?;
        if port == 0 {
            return Err(bad("ports are counted from 1"));
        }
        let service = match (parts.next(), parts.next()) {
            (None, _) => Service::Connections,
            (Some("ud"), None) => Service::Datagrams,
            _ => return Err(bad("what follows its port is not `ud`")),
        };
        Ok(Self {
            device: device.to_owned(),
            port,
            service,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_or_refused_with_how_they_look() {
        let of = |text: &str| PortName::of(&text.parse().unwrap()).map_err(|error| error.to_string());
        let name = of("verbs:mlx5_0:1:ud").unwrap();
        assert_eq!(
            (name.device.as_str(), name.port, name.service),
            ("mlx5_0", 1, Service::Datagrams)
        );
        assert_eq!(of("verbs:rxe0:2").unwrap().service, Service::Connections);
        for (text, word) in [
            ("verbs", "no device"),
            ("verbs:", "no device"),
            ("verbs:rxe0", "no port"),
            ("verbs:rxe0:0", "counted from 1"),
            ("verbs:rxe0:x", "no number"),
            ("verbs:rxe0:256", "no number"),
            ("verbs:rxe0:1:rc2", "not `ud`"),
            ("verbs:rxe0:1:ud:x", "not `ud`"),
            ("udp:eth0", "no verbs rail"),
        ] {
            let said = of(text).unwrap_err();
            assert!(
                said.contains(word) && said.contains("name verbs:DEVICE:PORT, or"),
                "{text}: {said}"
            );
        }
    }
}
