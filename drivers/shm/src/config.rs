//! Sizes and switches of the shm rail.

use doorbell_fabric::caps::{Capabilities, Estimate, Features, Limits};
use doorbell_fabric::error::RailError;
use doorbell_ring::lane::Geometry;

/// The rail's settings. The defaults suit a job of up to a few hundred ranks per host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Messages in flight per direction and peer; a power of two.
    pub cells: usize,
    /// Bytes in flight per direction and peer, beyond the first 24 of each message; a power of two.
    pub data: usize,
    /// Whether the receiver pulls long messages (`process_vm_readv`) where that works.
    pub cma: bool,
    /// Whether a waiting sender copies its share of a pulled message (`process_vm_writev`).
    pub help: bool,
    /// Largest message sent eagerly, in bytes, head included.
    pub eager: usize,
    /// Bytes of one fragment of a long message copied through the lane.
    pub fragment: usize,
    /// Smallest size in bytes, head included, for which a pull is better than fragments. Where this is less
    /// than `eager`, what copies take decides from which size on messages are pulled rather than sent at
    /// once.
    pub pull_from: usize,
    /// Most peers, at most 4096.
    pub peers: usize,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            cells: 512,
            data: 256 << 10,
            cma: true,
            help: true,
            eager: 32 << 10,
            fragment: 32 << 10,
            pull_from: 20 << 10,
            peers: 4096,
        }
    }
}

/// Bits in a ready object.
pub(crate) const PEERS_MAX: usize = 4096;

impl ShmConfig {
    /// The smallest and the largest [`ShmConfig::cells`]; a power of two.
    pub const CELLS: (usize, usize) = (2, 1 << 20);
    /// The smallest and the largest [`ShmConfig::data`] with the default `eager` and `fragment`, in bytes; a
    /// power of two. Half of it holds the longest message.
    pub const DATA: (usize, usize) = (128 << 10, 1 << 30);

    /// Checks the settings against each other and returns the lane's geometry.
    pub(crate) fn geometry(&self) -> Result<Geometry, RailError> {
        let geometry = Geometry::new(self.cells, self.data).map_err(|error| unusable(&error.to_string()))?;
        if self.eager > geometry.longest() || self.fragment + 64 > geometry.longest() {
            return Err(unusable(&format!(
                "eager ({}) and fragment ({}) must fit half of the lane's data ({})",
                self.eager, self.fragment, self.data
            )));
        }
        if self.eager < 256 || self.fragment < 256 || self.peers == 0 || self.peers > PEERS_MAX {
            return Err(unusable(
                "eager and fragment are at least 256 bytes, peers between 1 and 4096",
            ));
        }
        Ok(geometry)
    }

    pub(crate) fn capabilities(&self, geometry: Geometry, cma: bool) -> Capabilities {
        Capabilities {
            features: Features {
                get: cma,
                gather: true,
                reclaim: true,
                within_host: true,
                checksum: true,
                ..Features::default()
            },
            limits: Limits {
                head: 128,
                message: geometry.longest(),
                inline: doorbell_ring::lane::FIRST_BYTES,
                eager: self.eager,
                fragment: self.fragment,
                get_from: self.pull_from,
                parts: 64,
                one_sided: 1 << 40,
            },
            estimate: Estimate {
                latency_ns: 100,
                bandwidth: 12_000_000_000,
            },
        }
    }
}

fn unusable(reason: &str) -> RailError {
    RailError::Unusable {
        rail: "shm".to_owned(),
        reason: reason.to_owned(),
        remedy: "change the shm.* settings (`doorbell info --config` shows them)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_bounds_are_where_refusals_begin() {
        let good = ShmConfig::default();
        let (cells, data) = (ShmConfig::CELLS, ShmConfig::DATA);
        for value in [cells.0, cells.1] {
            assert!(
                ShmConfig { cells: value, ..good }.geometry().is_ok(),
                "{value} cells"
            );
        }
        for value in [0, cells.0 / 2, cells.0 + 1, cells.1 - 1, cells.1 * 2] {
            assert!(
                ShmConfig { cells: value, ..good }.geometry().is_err(),
                "{value} cells"
            );
        }
        for value in [data.0, data.1] {
            assert!(
                ShmConfig { data: value, ..good }.geometry().is_ok(),
                "{value} bytes"
            );
        }
        for value in [0, 1, data.0 / 2, data.0 + 1, data.1 * 2] {
            assert!(
                ShmConfig { data: value, ..good }.geometry().is_err(),
                "{value} bytes"
            );
        }
    }

    #[test]
    fn the_defaults_fit_each_other_and_bad_values_are_refused() {
        let good = ShmConfig::default();
        assert!(good.geometry().is_ok());
        let bad = [
            ShmConfig { cells: 1000, ..good },
            ShmConfig { data: 100, ..good },
            ShmConfig {
                eager: 1 << 20,
                ..good
            },
            ShmConfig {
                fragment: 128 << 10,
                ..good
            },
            ShmConfig { eager: 16, ..good },
            ShmConfig { peers: 5000, ..good },
        ];
        for config in bad {
            assert!(config.geometry().is_err(), "{config:?}");
        }
    }
}
