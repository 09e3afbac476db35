//! Sleeping: one epoll set for everything that can wake a rail's owner.
//!
//! ```text
//!   news of the link, of neighbours   always in it, by level
//!   queues                            one shot each, set again where it was spent: unspent ones cost no call
//! ```

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

/// The numbers by which the set names what became readable; queues follow.
const LINK: u64 = 0;
const NEIGHBOURS: u64 = 1;
const QUEUES: u64 = 2;

/// Whether a queue would wake a sleeper.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shot {
    /// The queue has never been in the set.
    Never,
    Set,
    Spent,
}

/// What is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) link: bool,
    pub(crate) neighbours: bool,
}

/// The epoll set, with what is in it.
pub(crate) struct Sleep {
    epoll: OwnedFd,
    shots: Vec<Shot>,
    armed: bool,
    pub(crate) news: News,
}

impl Sleep {
    /// A set for the link's and the neighbours' news, and `queues` queues.
    pub(crate) fn new(link: &OwnedFd, neighbours: &OwnedFd, queues: usize) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (socket, name) in [(link, LINK), (neighbours, NEIGHBOURS)] {
            epoll::add(&epoll, socket, EventData::new_u64(name), EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            shots: vec![Shot::Never; queues],
            armed: false,
            news: News::default(),
        })
    }

    /// Arms the set: from here on each queue makes it readable, also by what came before.
    pub(crate) fn arm<'a>(&mut self, sockets: impl Iterator<Item = BorrowedFd<'a>>) -> Result<(), Errno> {
        self.armed = true;
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        for ((socket, shot), name) in sockets.zip(&mut self.shots).zip(QUEUES..) {
            match shot {
                Shot::Set => continue,
                Shot::Never => epoll::add(&self.epoll, socket, EventData::new_u64(name), flags)?,
                Shot::Spent => epoll::modify(&self.epoll, socket, EventData::new_u64(name), flags)?,
            }
            *shot = Shot::Set;
        }
        Ok(())
    }

    /// Notes what has made the set readable. The kernel reports each frame of a queue that is set, at the
    /// sender's cost where that is on the same machine, so this is called now and then while the owner is
    /// awake, too.
    pub(crate) fn look(&mut self) {
        if !self.armed && !self.shots.contains(&Shot::Set) {
            return;
        }
        self.armed = false;
        let none = epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [none; 8];
        let now = rustix::event::Timespec::default();
        loop {
            let count = epoll::wait(&self.epoll, &mut events[..], Some(&now)).unwrap_or(0);
            for event in events.iter().take(count) {
                let event = *event;
                match event.data.u64() {
                    LINK => self.news.link = true,
                    NEIGHBOURS => self.news.neighbours = true,
                    queue => {
                        if let Some(shot) = self.shots.get_mut((queue - QUEUES) as usize) {
                            *shot = Shot::Spent;
                        }
                    }
                }
            }
            // News stay readable until they are read, so a full list of them would never end.
            if count < events.len() {
                break;
            }
        }
    }

    /// The set itself, to sleep on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.epoll)
    }
}
