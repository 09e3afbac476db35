//! Jobs of whole control planes, for tests: processes that are handles here, and the messages between them.

use std::collections::VecDeque;
use std::time::Instant;

use doorbell_oob::bytes::Bytes;
use doorbell_oob::config::{Config, Transport};
use doorbell_oob::contact::Contact;
use doorbell_oob::event::{Event, Status};
use doorbell_oob::lines::tcp::Settings;
use doorbell_oob::name::{Epoch, Name};
use doorbell_oob::plane::{Busy, Completion, Inbox, Message, Oob, Sent};
use doorbell_oob::runner;

use crate::side::{JOB, PATIENCE, key};

pub const TAG: u32 = 200;

pub fn config(rank: u32, ranks: u32) -> Config {
    let name = Name::new(JOB, rank);
    Config::new(name, Epoch(100), ranks, vec![Transport::direct("tcp")])
}

pub fn start(config: Config, tcp: Settings) -> Oob {
    Oob::start(config, tcp, key(7), runner::Settings::default()).unwrap()
}

pub fn contact(oob: &Oob) -> Contact {
    oob.contact().unwrap().wait(PATIENCE).flatten().unwrap()
}

/// Gives each the contacts of all others.
pub fn introduce(all: &[Oob]) {
    let contacts: Vec<Contact> = all.iter().map(contact).collect();
    all.iter().for_each(|oob| oob.learn(contacts.clone()).unwrap());
}

pub fn job_with(ranks: u32, runner: runner::Settings) -> Vec<Oob> {
    let start = |rank| Oob::start(config(rank, ranks), Settings::default(), key(7), runner).unwrap();
    let all: Vec<Oob> = (0..ranks).map(start).collect();
    introduce(&all);
    all.iter().for_each(|oob| oob.begin().unwrap());
    all
}

pub fn job(ranks: u32) -> Vec<Oob> {
    job_with(ranks, runner::Settings::default())
}

pub fn finish(all: Vec<Oob>) {
    for oob in all {
        oob.finish(PATIENCE);
        assert_eq!(oob.begin(), Err(Busy::Ended));
    }
}

pub fn number(nth: u32) -> Bytes {
    nth.to_be_bytes().as_slice().into()
}

/// Sends a word, which is to arrive.
pub fn say(from: &Oob, to: Name, tag: u32, word: &[u8]) {
    let sent = from.send(to, tag, word.into(), None).unwrap();
    assert_eq!(sent.wait(PATIENCE), Some(Ok(Status::Delivered)));
}

/// Sends all of them, so many at a time, and sees that all arrive.
pub fn send_all(from: &Oob, to: Name, count: u32, at_a_time: usize) {
    let mut under_way: VecDeque<(u32, Completion<Sent>)> = VecDeque::new();
    for nth in 0..count {
        if under_way.len() == at_a_time {
            arrives(under_way.pop_front());
        }
        let sent = from.send(to, TAG, number(nth), Some(PATIENCE)).unwrap();
        under_way.push_back((nth, sent));
    }
    under_way.into_iter().for_each(|sent| arrives(Some(sent)));
}

fn arrives(sent: Option<(u32, Completion<Sent>)>) {
    let (nth, sent) = sent.unwrap();
    assert_eq!(sent.wait(PATIENCE), Some(Ok(Status::Delivered)), "message {nth}");
}

/// The numbers in order, each once; after each of them, `then` is called.
pub fn receive_all(inbox: &Inbox<Message>, count: u32, mut then: impl FnMut(u32)) {
    for nth in 0..count {
        let message = inbox.wait(PATIENCE);
        let message = message.unwrap_or_else(|| panic!("message {nth} never came"));
        assert_eq!(message.body, number(nth), "message {nth}");
        then(nth);
    }
    assert!(inbox.take().is_none(), "once");
}

/// The first event that is one of those.
pub fn until(events: &Inbox<Event>, what: &str, is: impl Fn(&Event) -> bool) -> Event {
    let begun = Instant::now();
    loop {
        let event = events.wait(PATIENCE.saturating_sub(begun.elapsed()));
        let event = event.unwrap_or_else(|| panic!("no such event: {what}; ended: {:?}", events.ended()));
        if is(&event) {
            return event;
        }
    }
}
