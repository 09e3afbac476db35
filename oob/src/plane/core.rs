//! A node with its pending operations, which runs on the progress thread.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use doorbell_fabric::time::Time;

use super::completion::{Answer, Completion};
use super::inbox::{Inbox, Put};
use super::results::{Counters, Gathered, Message, NotReceived, Received, Sent, Spread};
use crate::bytes::Bytes;
use crate::config::{Config, Policy};
use crate::contact::Contact;
use crate::event::{Event, OpId, Output, RecvError, RecvId, SendId};
use crate::lines;
use crate::name::{From, Name};
use crate::node::Node;
use crate::runner::Core;
use crate::stream::charge;
use crate::transport::{self, Command, TransportId};

/// A request of a caller.
pub(super) enum Request {
    Begin,
    Learn(Vec<Contact>),
    Contact(Answer<Option<Contact>>),
    LookUp(Name),
    Explain(Name, Answer<String>),
    Send(Name, u32, Bytes, Option<Duration>, Answer<Sent>),
    GiveUp(Completion<Sent>),
    Receive(From, u32, Answer<Received>),
    Each(
        From,
        u32,
        Box<dyn FnMut(Message) + Send>,
        Answer<Result<(), NotReceived>>,
    ),
    Inbox(From, u32, Inbox<Message>),
    Resume(From, u32),
    Cancel(From, u32),
    /// An inbox may have been dropped.
    Sweep(From, u32),
    Broadcast(u32, Bytes, Duration, Answer<Spread>),
    Gather(u32, Bytes, Duration, Answer<Gathered>),
    Counters(lines::Counters, Answer<Counters>),
    Watch(Watcher),
    Hush,
}

/// A function that is called with each event.
pub(super) type Watcher = Box<dyn FnMut(&Event) + Send>;

/// The key of a receive: senders and tag.
type Place = (From, u32);

/// The destination of the messages of a receive.
enum Taker {
    Once(Answer<Received>),
    Each(Box<dyn FnMut(Message) + Send>),
    Inbox(Inbox<Message>),
}

/// A node, and the operations that wait for it.
pub(super) struct Plane {
    node: Node,
    commands: VecDeque<(TransportId, Command)>,
    sends: HashMap<SendId, (Name, Answer<Sent>)>,
    recvs: HashMap<RecvId, (Place, Taker)>,
    /// Full inboxes, whose receives are not posted.
    paused: HashMap<Place, Inbox<Message>>,
    spreads: HashMap<OpId, Answer<Spread>>,
    gathers: HashMap<u32, Answer<Gathered>>,
    events: Inbox<Event>,
    /// Functions called with each event before the inbox gets it.
    watchers: Vec<Watcher>,
    /// Whether events are no longer reported.
    hushed: bool,
    broadcasts: Inbox<Message>,
    /// Whether it has ended because the lifeline is lost.
    over: bool,
}

impl Plane {
    pub(super) fn new(config: Config, now: Time, told: (Inbox<Event>, Inbox<Message>)) -> Self {
        let (events, broadcasts) = told;
        Self {
            node: Node::new(config, now),
            commands: VecDeque::new(),
            sends: HashMap::new(),
            recvs: HashMap::new(),
            paused: HashMap::new(),
            spreads: HashMap::new(),
            gathers: HashMap::new(),
            events,
            watchers: Vec::new(),
            hushed: false,
            broadcasts,
            over: false,
        }
    }

    /// Takes the outputs of the node.
    fn settle(&mut self, now: Time) {
        while let Some(output) = self.node.output() {
            match output {
                Output::Command(transport, command) => self.commands.push_back((transport, command)),
                Output::Event(event) => self.happened(now, event),
            }
        }
    }

    fn happened(&mut self, now: Time, event: Event) {
        match event {
            Event::Received {
                recv,
                from,
                tag,
                body,
            } => self.received(now, recv, Message { from, tag, body }),
            Event::Sent { send, status, .. } => {
                if let Some((_, answer)) = self.sends.remove(&send) {
                    answer.give(Ok(status));
                }
            }
            Event::Cancelled { recv } => {
                // The receive of a full inbox was cancelled on purpose: do not report it as ended.
                if let Some((of, taker)) = self.recvs.remove(&recv)
                    && !self.paused.contains_key(&of)
                {
                    taker.end(NotReceived::Cancelled);
                }
            }
            Event::Broadcast { from, tag, body } => {
                let weight = charge(body.len()) as usize;
                self.broadcasts.put(Message { from, tag, body }, weight);
            }
            Event::BroadcastEnded { op, missing } => {
                if let Some(answer) = self.spreads.remove(&op) {
                    answer.give(Ok(missing));
                }
            }
            Event::Gathered { id, table, missing } => self.gathered(id, Some(table), missing),
            Event::GatherFailed { id, missing } => self.gathered(id, None, missing),
            event => {
                self.over |= event == Event::LifelineLost && self.node.config().policy == Policy::End;
                if !self.hushed {
                    self.watchers.iter_mut().for_each(|watcher| watcher(&event));
                    self.events.put(event, 1);
                }
            }
        }
    }

    fn gather(&mut self, now: Time, id: u32, body: &Bytes, within: Duration, answer: Answer<Gathered>) {
        if self.gathers.contains_key(&id) {
            let (table, missing) = (None, vec![self.node.name().rank]);
            return answer.give(Gathered { table, missing });
        }
        self.gathers.insert(id, answer);
        self.node.gather(now, id, body, within);
    }

    fn gathered(&mut self, id: u32, table: Option<Vec<(u32, Bytes)>>, missing: Vec<u32>) {
        if let Some(answer) = self.gathers.remove(&id) {
            answer.give(Gathered { table, missing });
        }
    }

    fn received(&mut self, now: Time, recv: RecvId, message: Message) {
        let Some((of, taker)) = self.recvs.get_mut(&recv) else {
            return;
        };
        let (of, weight) = (*of, charge(message.body.len()) as usize);
        match taker {
            Taker::Each(each) => each(message),
            Taker::Inbox(inbox) => match inbox.put(message, weight) {
                Put::Goes => {}
                // From now on messages wait in the node. Those delivered already still go to the inbox.
                Put::Full => {
                    self.paused.insert(of, inbox.inner());
                    self.node.cancel(now, of.0, of.1);
                }
                Put::Deserted => self.node.cancel(now, of.0, of.1),
            },
            Taker::Once(_) => {
                if let Some((_, Taker::Once(answer))) = self.recvs.remove(&recv) {
                    answer.give(Ok(message));
                }
            }
        }
    }

    fn post(&mut self, now: Time, of: Place, persistent: bool, taker: Taker) -> Result<(), RecvError> {
        let posted = self.try_post(now, of, persistent).or_else(|_| {
            // An inbox that was dropped may be in the way.
            self.sweep(now, of);
            self.try_post(now, of, persistent)
        });
        match posted {
            Ok(recv) => {
                self.recvs.insert(recv, (of, taker));
                Ok(())
            }
            Err(error) => {
                taker.end(NotReceived::NotPosted(error));
                Err(error)
            }
        }
    }

    fn try_post(&mut self, now: Time, of: Place, persistent: bool) -> Result<RecvId, RecvError> {
        let (from, tag) = of;
        if self.paused.contains_key(&of) {
            return Err(RecvError::Twice { from, tag });
        }
        self.node.post(now, from, tag, persistent)
    }

    /// Posts the receive of an inbox again, which has room now.
    fn resume(&mut self, now: Time, of: Place) {
        let has_room = |inbox: &Inbox<Message>| !inbox.is_paused();
        if self.paused.get(&of).is_some_and(has_room)
            && let Some(inbox) = self.paused.remove(&of)
        {
            let _ = self.post(now, of, true, Taker::Inbox(inbox));
        }
    }

    fn cancel(&mut self, now: Time, of: Place) {
        if let Some(inbox) = self.paused.remove(&of) {
            inbox.end(NotReceived::Cancelled);
        }
        self.node.cancel(now, of.0, of.1);
    }

    /// Cancels the receive of an inbox that was dropped.
    fn sweep(&mut self, now: Time, of: Place) {
        let paused = self.paused.get(&of).is_some_and(Inbox::is_deserted);
        let mut posted = self.recvs.values().filter(|(at, _)| *at == of);
        if paused || posted.any(|(_, taker)| taker.is_deserted()) {
            self.cancel(now, of);
        }
    }

    fn give_up(&mut self, now: Time, what: &Completion<Sent>) {
        let found = self.sends.iter().find(|(_, (_, answer))| answer.is_for(what));
        if let Some((&send, &(to, _))) = found {
            self.node.cancel_send(now, to, send);
        }
    }
}

impl Taker {
    /// Ends the receive: nothing more comes.
    fn end(self, why: NotReceived) {
        match self {
            Self::Once(answer) => answer.give(Err(why)),
            Self::Each(_) => {}
            Self::Inbox(inbox) => inbox.end(why),
        }
    }

    fn is_deserted(&self) -> bool {
        matches!(self, Self::Inbox(inbox) if inbox.is_deserted())
    }
}

impl Core for Plane {
    type Request = Request;

    fn request(&mut self, now: Time, request: Request) {
        match request {
            Request::Begin => self.node.start(now),
            Request::Learn(contacts) => contacts
                .into_iter()
                .for_each(|contact| self.node.learn(now, contact)),
            Request::Contact(answer) => answer.give(Some(self.node.contact())),
            Request::LookUp(name) => self.node.look_up(now, name),
            Request::Explain(name, answer) => answer.give(self.node.explain(name)),
            Request::Send(to, tag, body, within, answer) => {
                match self.node.send(now, to, tag, body, within) {
                    Ok(send) => drop(self.sends.insert(send, (to, answer))),
                    Err(error) => answer.give(Err(error)),
                }
            }
            Request::GiveUp(completion) => self.give_up(now, &completion),
            Request::Receive(from, tag, answer) => {
                let _ = self.post(now, (from, tag), false, Taker::Once(answer));
            }
            Request::Each(from, tag, each, answer) => {
                let posted = self.post(now, (from, tag), true, Taker::Each(each));
                answer.give(posted.map_err(NotReceived::NotPosted));
            }
            Request::Inbox(from, tag, inbox) => {
                let _ = self.post(now, (from, tag), true, Taker::Inbox(inbox));
            }
            Request::Resume(from, tag) => self.resume(now, (from, tag)),
            Request::Cancel(from, tag) => self.cancel(now, (from, tag)),
            Request::Sweep(from, tag) => self.sweep(now, (from, tag)),
            Request::Broadcast(tag, body, within, answer) => {
                match self.node.broadcast(now, tag, &body, within) {
                    Ok(op) => drop(self.spreads.insert(op, answer)),
                    Err(error) => answer.give(Err(error)),
                }
            }
            Request::Gather(id, body, within, answer) => self.gather(now, id, &body, within, answer),
            Request::Watch(watcher) => self.watchers.push(watcher),
            Request::Hush => self.hushed = true,
            Request::Counters(tcp, answer) => answer.give(Counters {
                node: self.node.counters(),
                tcp,
            }),
        }
        self.settle(now);
    }

    fn handle(&mut self, now: Time, transport: TransportId, event: transport::Event) {
        self.node.handle(now, transport, event);
        self.settle(now);
    }

    fn tick(&mut self, now: Time) {
        self.node.tick(now);
        self.settle(now);
    }

    fn next_deadline(&self) -> Option<Time> {
        self.node.next_deadline()
    }

    fn command(&mut self) -> Option<(TransportId, Command)> {
        self.commands.pop_front()
    }

    fn is_quiet(&self) -> bool {
        self.node.is_quiet() && self.sends.is_empty()
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn end(&mut self, now: Time) {
        self.node.end(now);
        self.settle(now);
    }
}

impl Drop for Plane {
    /// Ends the inboxes; the senders of results do so by themselves.
    fn drop(&mut self) {
        let takers = self.recvs.drain().map(|(_, (_, taker))| taker);
        takers.for_each(|taker| taker.end(NotReceived::Ended));
        let inboxes = self.paused.drain().map(|(_, inbox)| inbox);
        inboxes.for_each(|inbox| inbox.end(NotReceived::Ended));
        self.broadcasts.end(NotReceived::Ended);
        self.events.end(NotReceived::Ended);
    }
}
