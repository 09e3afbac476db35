//! Background refresh: a bounded number of recently used destinations is confirmed somewhat more often than
//! [`confirm`](super::Options::confirm) demands, so that they can answer at once.

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::entry::{Key, Origin};
use super::search::Stage;
use super::{Resolver, Timer};
use crate::address::Address;

/// The destinations that are refreshed, by when they are due.
#[derive(Debug, Default)]
pub(super) struct Refresher(VecDeque<(Time, Key)>);

impl Resolver {
    fn interval(&self) -> Duration {
        self.options.confirm * 3 / 4
    }

    /// Watches a destination that just answered a query, and refreshes it if it is about to expire.
    pub(super) fn keep_fresh(&mut self, key: &Key, source: &Address) {
        let (now, interval) = (self.now, self.interval());
        let room = self.watch.0.len() < self.options.watched;
        let route_life = self.options.route_timeout;
        let Some(entry) = self.cache.get_mut(key) else {
            return;
        };
        let asked = entry.confirmed != Time::NEVER && entry.origin != Origin::Route;
        if asked && room && !interval.is_zero() && !std::mem::replace(&mut entry.watched, true) {
            self.watch.0.push_back((now + interval, key.clone()));
            self.arm();
        }
        let Some(entry) = self.cache.get(key) else { return };
        let ends = |until: Time, life: Option<Duration>| life.is_some_and(|life| until.since(now) < life / 8);
        let address_ends =
            asked && interval.is_zero() && ends(entry.address_until, self.options.addr_timeout);
        let route_ends =
            !matches!(entry.origin, Origin::Static | Origin::Route) && ends(entry.route_until, route_life);
        let stage = if address_ends || (route_ends && asked && !self.uses_sa(key.endpoint)) {
            Stage::Confirm { tries: 0 }
        } else if route_ends && self.uses_sa(key.endpoint) {
            Stage::Route { asked: false }
        } else if entry.has_route(now) && self.may_grow(key) {
            Stage::Probe
        } else {
            return;
        };
        self.refresh(key, source, stage);
    }

    /// Starts a search in the background, while the entry still answers.
    fn refresh(&mut self, key: &Key, source: &Address, stage: Stage) {
        if self.by_key.contains_key(key) {
            return;
        }
        // If no search can start, a query after the expiry waits for one.
        let Ok(id) = self.begin(key.clone(), source.clone(), false) else {
            return;
        };
        let known = self.cache.get(key).map(|entry| (entry.peer, entry.origin));
        if let (Some(search), Some((peer, origin))) = (self.searches.get_mut(&id), known) {
            (search.stage, search.peer, search.origin) = (stage, peer, origin);
        }
        self.start(id);
    }

    pub(super) fn watch_due(&mut self) {
        let (now, interval) = (self.now, self.interval());
        while self.watch.0.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, key)) = self.watch.0.pop_front() else {
                break;
            };
            let idle = self.options.watch;
            let Some(entry) = self.cache.get_mut(&key).filter(|entry| entry.watched) else {
                continue;
            };
            if !entry.is_alive(now) || now.since(entry.used) > idle {
                entry.watched = false;
                continue;
            }
            let heard = now.since(entry.confirmed) < interval / 2;
            self.watch.0.push_back((now + interval, key.clone()));
            if !heard && let Some(source) = self.source_of(&key) {
                self.refresh(&key, &source, Stage::Confirm { tries: 0 });
            }
        }
        self.arm();
    }

    fn source_of(&self, key: &Key) -> Option<Address> {
        let port = self.port(key.endpoint)?;
        port.endpoint.addresses.first().cloned()
    }

    fn arm(&mut self) {
        let due = self.watch.0.front().map_or(Time::NEVER, |(due, _)| *due);
        self.timers.set(Timer::Watch, due);
    }
}
