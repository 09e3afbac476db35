//! Changes of NICs, and of the paths that follow from them.

use std::time::Duration;

use doorbell_fabric::time::Time;
use doorbell_inet::{Nic, NicMonitor, nics};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::Sender;

use super::Tcp;
use super::line::Note;
use super::module::{Module, Runs, Thread};
use super::reach;
use crate::error::OobError;
use crate::lines::connections::{LineId, Lines};
use crate::name::Name;
use crate::transport::{Address, Event, Loss, ModuleId, Refusal};

/// Notifications come in bursts: delay from the first one to the scan.
const SWARM: Duration = Duration::from_millis(5);
/// Maximum peers whose paths are looked up again in one turn, after routes have changed.
const LOOKED: usize = 32;

/// Reports changes until the receiver is gone.
async fn watch(watch: AsyncFd<NicMonitor>, notes: Sender<Note>) {
    while let Ok(mut ready) = watch.readable().await {
        // Clear readiness first: whatever comes later sets it again.
        ready.clear_ready();
        tokio::time::sleep(SWARM).await;
        if watch.get_ref().drain() && notes.send(Note::Changed).await.is_err() {
            return;
        }
    }
}

/// `AsyncFd::register` requires that the value owns its descriptor, keeps it open and never changes it, as a
/// [`NicMonitor`] does. The newer call states that by being unsafe, and this crate has no unsafe code here.
#[allow(deprecated)]
fn registered(watch: NicMonitor) -> std::io::Result<AsyncFd<NicMonitor>> {
    AsyncFd::with_interest(watch, Interest::READABLE)
}

impl Tcp {
    /// Makes the first scan, which has to find a NIC.
    pub(super) fn begin(&mut self) -> Result<(), OobError> {
        let step = |step| move |source| OobError::Nics { step, source };
        // Start the watch first, so that no change after the listing is missed.
        let socket = NicMonitor::new().and_then(registered).map_err(step("watch"))?;
        let all = nics().map_err(step("list"))?;
        let chosen = &self.shared.settings.nics;
        let beyond = all
            .iter()
            .filter(|nic| self.shared.terms.key.is_none() && !nic.is_loopback())
            .find_map(|nic| chosen.of(&nic.all_usable(), false).first().copied());
        if let Some(own) = beyond {
            return Err(OobError::KeyNeeded {
                address: (own.ip, 0).into(),
            });
        }
        // A NIC whose addresses are not ready yet counts.
        if all
            .iter()
            .all(|nic| chosen.of(&nic.all_usable(), false).is_empty())
        {
            return Err(OobError::NoNic {
                chosen: chosen.to_string(),
            });
        }
        let now = self.shared.clock.now();
        self.take_in(now, &all);
        let listens = self.modules.values().any(|module| !module.addresses().is_empty());
        let up = self.modules.values().any(Module::is_up);
        if up
            && !listens
            && let Some(error) = self.connections.troubles.pop_front()
        {
            return Err(error);
        }
        let task = self.runtime.spawn(watch(socket, self.tell.clone()));
        self.watch = Some(task.abort_handle());
        Ok(())
    }

    /// Scans all NICs.
    pub(super) fn look(&mut self, now: Time) {
        if self.leaving {
            return;
        }
        match nics() {
            Ok(all) => self.take_in(now, &all),
            Err(_) => {
                self.connections.counters.blind += 1;
                self.again = Some(now + self.shared.settings.again);
            }
        }
    }

    fn take_in(&mut self, now: Time, all: &[Nic]) {
        self.again = None;
        self.host = all
            .iter()
            .flat_map(|nic| nic.addresses.iter().map(|own| own.ip))
            .collect();
        let gone: Vec<ModuleId> = self
            .modules
            .values()
            .filter(|module| all.iter().all(|nic| nic.index != module.index))
            .map(|module| module.id)
            .collect();
        for module in gone {
            self.adjust(now, module, Vec::new());
            self.modules.remove(&module);
        }
        for nic in all {
            self.take_in_one(now, nic);
        }
        // Routes may have changed as well.
        self.stale.extend(self.asked.keys());
    }

    fn take_in_one(&mut self, now: Time, nic: &Nic) {
        let known = self.modules.values().find(|module| module.index == nic.index);
        let known = known.map(|module| module.id);
        let mut own = self.shared.settings.nics.of(nic, known.is_some());
        if self.shared.terms.key.is_none() {
            own.retain(|own| own.ip.is_loopback());
        }
        let module = match known {
            Some(module) => module,
            None if own.is_empty() => return,
            None => match self.add(nic) {
                Ok(module) => module,
                Err(error) => {
                    self.again = Some(now + self.shared.settings.again);
                    return self.connections.troubled(error);
                }
            },
        };
        if let Some(module) = self.modules.get_mut(&module) {
            module.name.clone_from(&nic.name);
        }
        self.adjust(now, module, if nic.is_up() { own } else { Vec::new() });
    }

    fn add(&mut self, nic: &Nic) -> Result<ModuleId, OobError> {
        let next = self.module_count;
        let id = ModuleId(
            u16::try_from(next).map_err(|_| OobError::State("too many network interfaces came and went"))?,
        );
        let runs = if self.shared.settings.threads {
            Runs::Thread(Thread::start(&nic.name, self.shared.settings.cores.clone())?)
        } else {
            Runs::Here(self.runtime.clone())
        };
        self.module_count += 1;
        self.modules
            .insert(id, Module::new(id, nic.index, nic.name.clone(), runs));
        Ok(id)
    }

    /// Applies the addresses of a module.
    fn adjust(&mut self, now: Time, id: ModuleId, own: Vec<doorbell_inet::NicAddress>) {
        let Some(module) = self.modules.get_mut(&id) else {
            return;
        };
        let (changed, failed) = module.adjust(own, self.shared.settings.ports, &self.tell);
        let (up, told, addresses) = (module.is_up(), module.told, module.addresses());
        module.told = up;
        if let Some(error) = failed {
            // Reported once, and retried as long as it takes.
            if changed {
                self.connections.troubled(error);
            }
            self.again = Some(now + self.shared.settings.again);
        }
        // Report lost links before the change of the module.
        self.orphans(now, id);
        if up && (changed || !told) {
            self.connections.events.push_back(Event::ModuleUp {
                module: id,
                addresses,
            });
        } else if !up && told {
            self.connections
                .events
                .push_back(Event::ModuleDown { module: id });
        }
    }

    /// Ends the connections of addresses that the module no longer has.
    fn orphans(&mut self, now: Time, id: ModuleId) {
        let Some(module) = self.modules.get(&id) else {
            return;
        };
        let all = self.connections.all.iter();
        let lost = all.filter(|(_, own)| own.module == id && !module.has(own.line.local));
        let lost: Vec<LineId> = lost.map(|(&line, _)| line).collect();
        for line in lost {
            self.end(now, line, Refusal::NoRoute, Loss::ModuleDown);
        }
    }

    pub(super) fn reach(&mut self, peer: Name, addresses: Vec<Address>) {
        let paths = self.paths(&addresses);
        self.stale.remove(&peer);
        self.asked.insert(peer, (addresses, paths.clone()));
        self.connections.events.push_back(Event::Paths { peer, paths });
    }

    fn paths(&self, addresses: &[Address]) -> Vec<crate::transport::Path> {
        let up = self.modules.values().filter(|module| module.is_up());
        let nics: Vec<reach::Nic> = up.map(Module::nic).collect();
        reach::paths(&nics, &self.host, addresses)
    }

    /// Looks up paths again, where they may have changed, and reports those that did.
    pub(super) fn look_again(&mut self) {
        for _ in 0..LOOKED {
            let Some(peer) = self.stale.pop_first() else {
                return;
            };
            let Some((addresses, before)) = self.asked.get(&peer) else {
                continue;
            };
            let paths = self.paths(addresses);
            if paths != *before {
                if let Some((_, before)) = self.asked.get_mut(&peer) {
                    before.clone_from(&paths);
                }
                self.connections.events.push_back(Event::Paths { peer, paths });
            }
        }
    }
}
