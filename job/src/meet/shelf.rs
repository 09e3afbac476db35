//! A launcher inside this process, for tests: its ranks exchange values through a map.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use doorbell_oob::Launcher;
use doorbell_oob::launch::{Kind, LaunchError, Place};

/// The values that ranks have put, and a count of look-ups; clones refer to the same map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values(Arc<Shelved>);

#[derive(Debug, Default)]
struct Shelved {
    put: Mutex<BTreeMap<(u32, String), Vec<u8>>>,
    looks: AtomicUsize,
}

#[allow(
    dead_code,
    reason = "tests of two crates include this file, and each uses a part of it"
)]
impl Values {
    /// Makes a map with these values, which later puts do not replace.
    pub(crate) fn of<'a>(put: impl Iterator<Item = (u32, &'a str, &'a [u8])>) -> Self {
        let values = Self::default();
        for (rank, key, text) in put {
            values.keep(rank, key, text);
        }
        values
    }

    pub(crate) fn keep(&self, rank: u32, key: &str, text: &[u8]) {
        let mut put = self.0.put.lock().unwrap();
        put.insert((rank, key.to_owned()), text.to_vec());
    }

    /// Returns how many values were looked up since the last call.
    pub(crate) fn looks(&self) -> usize {
        self.0.looks.swap(0, Ordering::Relaxed)
    }
}

/// The launcher of one rank.
#[derive(Debug)]
pub(crate) struct Shelf {
    place: Place,
    values: Values,
    barrier: Arc<Barrier>,
}

impl Shelf {
    pub(crate) fn new((rank, size): (u32, u32), values: &Values, barrier: &Arc<Barrier>) -> Self {
        Self {
            place: Place {
                rank,
                size,
                local_rank: None,
                local_size: None,
                job: String::new(),
            },
            values: values.clone(),
            barrier: Arc::clone(barrier),
        }
    }
}

impl Launcher for Shelf {
    fn kind(&self) -> Kind {
        Kind::Pmi1
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn put(&mut self, key: &str, value: &[u8], _: Duration) -> Result<(), LaunchError> {
        let key = (self.place.rank, key.to_owned());
        // A value that a test has put there before stays.
        let mut put = self.values.0.put.lock().unwrap();
        put.entry(key).or_insert(value.to_vec());
        Ok(())
    }

    fn fence(&mut self, _: Duration) -> Result<(), LaunchError> {
        self.barrier.wait();
        Ok(())
    }

    fn get(&mut self, rank: u32, key: &str, _: Duration) -> Result<Vec<u8>, LaunchError> {
        self.values.0.looks.fetch_add(1, Ordering::Relaxed);
        let found = self.values.0.put.lock().unwrap();
        let found = found.get(&(rank, key.to_owned())).cloned();
        found.ok_or_else(|| LaunchError::Absent {
            kind: Kind::Pmi1,
            rank,
            key: key.to_owned(),
        })
    }

    fn abort(&mut self, _: u8, _: &str, _: Duration) -> Result<(), LaunchError> {
        Ok(())
    }

    fn finalize(&mut self, _: Duration) -> Result<(), LaunchError> {
        Ok(())
    }
}
