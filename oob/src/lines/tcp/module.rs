//! A NIC as a module: its listeners, its addresses, and the runtime that its connections run on.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread::JoinHandle;

use doorbell_fabric::cores::{self, CoreSet};
use doorbell_inet::NicAddress;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::address::{self, Place};
use super::line::Note;
use super::listener;
use super::reach;
use super::settings::Ports;
use super::socket;
use crate::contact::ADDRESSES_MAX;
use crate::error::OobError;
use crate::transport::{Address, ModuleId};

/// The runtime on which the tasks of a module run.
#[derive(Debug)]
pub(super) enum Runs {
    /// The transport's runtime, shared with all others.
    Here(Handle),
    /// A thread of its own.
    Thread(Thread),
}

impl Runs {
    pub(super) fn handle(&self) -> &Handle {
        match self {
            Self::Here(handle) => handle,
            Self::Thread(thread) => &thread.handle,
        }
    }
}

/// A thread that runs the tasks of one module. Dropping it ends the thread and all tasks.
#[derive(Debug)]
pub(super) struct Thread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Starts it, on these cores if any are named: a thread that is bound passes its one core on. Waits until
    /// it has them, since it cannot run beside a thread that spins on that one.
    pub(super) fn start(nic: &str, on: Option<CoreSet>) -> Result<Self, OobError> {
        let failed = |source| OobError::Thread {
            what: "the thread of a network interface",
            source,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (tell, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("oob-{nic}"))
            .spawn(move || {
                // Where the system refuses that, it shares the core of the thread that spins.
                let _ = on.map(|cores| cores::bind(&cores));
                drop(tell);
                let _ = runtime.block_on(stopped);
            })
            .map_err(failed)?;
        // The thread sends nothing: it drops its end.
        let _: Result<(), _> = is_ready.recv();
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A listener of a module, with its task.
#[derive(Debug)]
struct Open {
    ip: IpAddr,
    port: u16,
    task: AbortHandle,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
pub(super) struct Module {
    pub(super) id: ModuleId,
    /// The index and the name of the NIC.
    pub(super) index: u32,
    pub(super) name: String,
    /// The addresses in use; none while it is down.
    own: Vec<NicAddress>,
    doors: Vec<Open>,
    /// The last port of each address: peers know it, and find the module there when it comes back.
    ports: BTreeMap<IpAddr, u16>,
    pub(super) runs: Runs,
    /// Whether it was announced to the core.
    pub(super) told: bool,
}

impl Module {
    pub(super) fn new(id: ModuleId, index: u32, name: String, runs: Runs) -> Self {
        Self {
            id,
            index,
            name,
            own: Vec::new(),
            doors: Vec::new(),
            ports: BTreeMap::new(),
            runs,
            told: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        !self.own.is_empty()
    }

    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|own| own.ip == ip)
    }

    /// Returns the NIC as the path look-up needs it.
    pub(super) fn nic(&self) -> reach::Nic {
        reach::Nic {
            module: self.id,
            index: self.index,
            name: self.name.clone(),
            own: self.own.clone(),
        }
    }

    /// Uses exactly these addresses from now on, opening and closing listeners. Returns whether anything
    /// changed, and the first error.
    pub(super) fn adjust(
        &mut self,
        own: Vec<NicAddress>,
        ports: Ports,
        notes: &Sender<Note>,
    ) -> (bool, Option<OobError>) {
        let (mut changed, mut failed) = (self.own != own, None);
        self.own = own;
        let before = self.doors.len();
        let own = &self.own;
        self.doors
            .retain(|door| own.iter().any(|own| own.ip == door.ip) && !door.task.is_finished());
        changed |= self.doors.len() != before;
        let without: Vec<IpAddr> = own
            .iter()
            .map(|own| own.ip)
            .filter(|&ip| self.doors.iter().all(|door| door.ip != ip))
            .collect();
        for ip in without {
            match self.open(ip, ports, notes) {
                Ok(()) => changed = true,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        (changed, failed)
    }

    fn open(&mut self, ip: IpAddr, ports: Ports, notes: &Sender<Note>) -> Result<(), OobError> {
        let at = |port| address::socket(ip, port, self.index);
        let before = self.ports.get(&ip);
        let before = before.and_then(|&port| socket::door(at, Ports::range(port, port)?).ok());
        let opened = before.map_or_else(|| socket::door(at, ports), Ok);
        let (listener, port) = opened.map_err(|source| OobError::Ports {
            address: ip,
            nic: self.name.clone(),
            ports: ports.to_string(),
            source,
        })?;
        if self.ports.len() < ADDRESSES_MAX || self.ports.contains_key(&ip) {
            self.ports.insert(ip, port);
        }
        let serve = listener::serve(self.id, listener, notes.clone());
        let task = self.runs.handle().spawn(serve).abort_handle();
        self.doors.push(Open { ip, port, task });
        Ok(())
    }

    /// Returns the addresses to publish: all that it listens on.
    pub(super) fn addresses(&self) -> Vec<Address> {
        let place = |door: &Open| {
            let own = self.own.iter().find(|own| own.ip == door.ip)?;
            let place = Place {
                ip: door.ip,
                prefix: own.prefix,
                port: door.port,
            };
            Some(place.to_string().into())
        };
        let mut all: Vec<Address> = self.doors.iter().filter_map(place).collect();
        all.sort();
        all.truncate(ADDRESSES_MAX);
        all
    }

    /// Closes all listeners.
    pub(super) fn shut(&mut self) {
        self.doors.clear();
    }
}
