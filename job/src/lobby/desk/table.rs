//! The connections of a desk: each with a number, which the epoll set reports, and with what it is for.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use doorbell_fabric::map::clofork::CloforkFd;
use rustix::event::epoll;

use crate::lobby::card::Name;

/// Most connections that have not sent a card yet. A caller sends its card in the step that connects, so that
/// few wait for one, and each of them takes a descriptor.
pub(super) const MOST_SILENT: usize = 256;
/// Most connections to processes that stay open; the rails notice the end of further processes.
pub(super) const MOST_LINES: usize = 4096;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Role {
    /// Its caller has sent no card yet.
    Silent,
    /// It is a call of ours, which is not answered yet.
    Call(Name),
    /// Cards were exchanged: its end shows the end of the other process.
    Line(Name),
}

/// A socket in the epoll set, which it leaves before it is closed: a copy of the descriptor in another
/// process would keep the entry, and its end would wake every sleep.
#[derive(Debug)]
pub(super) struct Watched {
    socket: CloforkFd,
    set: Arc<OwnedFd>,
}

impl Watched {
    /// Adds a socket to the set, which reports `number`.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn new(set: &Arc<OwnedFd>, socket: CloforkFd, number: u64) -> rustix::io::Result<Self> {
        let event = epoll::EventData::new_u64(number);
        epoll::add(set, &socket, event, epoll::EventFlags::IN)?;
        let set = Arc::clone(set);
        Ok(Self { socket, set })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A child has the set of its parent, and the number of the socket may be of another one.
        if self.socket.is_here() {
            let _ = epoll::delete(&self.set, &self.socket);
        }
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One connection of the desk, and its purpose.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Watched,
    pub(super) role: Role,
}

/// The connections of a desk, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Table {
    connections: HashMap<u64, Connection>,
    /// The numbers of silent ones, oldest first.
    silent: VecDeque<u64>,
    /// The numbers of the lines to each process.
    lines: HashMap<Name, Vec<u64>>,
    open_lines: usize,
    last: u64,
}

impl Table {
    /// Returns the next connection's number. None is zero.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn get(&self, number: u64) -> Option<&Connection> {
        self.connections.get(&number)
    }

    /// Keeps a connection. Returns those that had to make room for it, which close when they are dropped.
    pub(super) fn put(&mut self, number: u64, socket: Watched, role: Role) -> Option<Connection> {
        let mut evicted = None;
        match role {
            Role::Silent => {
                if self.silent.len() >= MOST_SILENT
                    && let Some(oldest) = self.silent.front().copied()
                {
                    evicted = self.take(oldest);
                }
                self.silent.push_back(number);
            }
            Role::Call(_) => {}
            Role::Line(_) if self.open_lines >= MOST_LINES => return Some(Connection { socket, role }),
            Role::Line(name) => {
                self.open_lines += 1;
                self.lines.entry(name).or_default().push(number);
            }
        }
        self.connections.insert(number, Connection { socket, role });
        evicted
    }

    /// Removes a connection.
    pub(super) fn take(&mut self, number: u64) -> Option<Connection> {
        let connection = self.connections.remove(&number)?;
        match connection.role {
            Role::Silent => self.silent.retain(|other| *other != number),
            Role::Call(_) => {}
            Role::Line(name) => {
                self.open_lines -= 1;
                if let Some(numbers) = self.lines.get_mut(&name) {
                    numbers.retain(|other| *other != number);
                    if numbers.is_empty() {
                        self.lines.remove(&name);
                    }
                }
            }
        }
        Some(connection)
    }

    /// Removes all lines to a process.
    pub(super) fn take_lines(&mut self, name: &Name) -> Vec<Connection> {
        let numbers = self.lines.get(name).cloned().unwrap_or_default();
        numbers
            .into_iter()
            .filter_map(|number| self.take(number))
            .collect()
    }

    /// Whether a line to a process is open.
    pub(super) fn has_line(&self, name: &Name) -> bool {
        self.lines.contains_key(name)
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }
}
