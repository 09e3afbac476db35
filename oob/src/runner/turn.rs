//! The event loop of the progress thread.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use doorbell_fabric::time::Time;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, Sleep, sleep};

use super::{Carrier, Core, Message};
use crate::lines::Clock;
use crate::transport::TransportId;

/// Maximum requests taken from the mailbox per turn.
const ASKED: usize = 256;
/// Maximum time of one sleep, whatever the deadlines are.
const LONG: Duration = Duration::from_secs(3600);

/// How long the end may take when the core ends by itself.
const FAREWELL: Duration = Duration::from_secs(2);

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not begun.
    Runs,
    /// Pending requests are carried out until the first of these times; everything has ended by the second.
    Flushes(Time, Time),
    /// Everything is being closed, until this time.
    Closes(Time),
}

pub(super) struct Turn<C: Core> {
    core: C,
    carriers: Vec<Box<dyn Carrier>>,
    mailbox: Receiver<Message<C::Request>>,
    /// Set when something that ran on this thread requests the end.
    left: Arc<OnceLock<Duration>>,
    clock: Clock,
    spin: bool,
    stage: Stage,
}

impl<C: Core> Turn<C> {
    pub(super) fn new(
        core: C,
        carriers: Vec<Box<dyn Carrier>>,
        (mailbox, left): (Receiver<Message<C::Request>>, Arc<OnceLock<Duration>>),
        clock: Clock,
        spin: bool,
    ) -> Self {
        Self {
            core,
            carriers,
            mailbox,
            left,
            clock,
            spin,
            stage: Stage::Runs,
        }
    }

    /// Runs until the end.
    pub(super) async fn run(mut self) {
        let mut alarm = Box::pin(sleep(LONG));
        loop {
            let now = self.clock.now();
            self.core.tick(now);
            self.carriers.iter_mut().for_each(|carrier| carrier.tick(now));
            self.carry(now);
            if self.is_over(now) {
                return;
            }
            if self.spin {
                let _ = poll_fn(|cx| Poll::Ready(self.look(cx))).await;
                tokio::task::yield_now().await;
            } else {
                self.wait(alarm.as_mut()).await;
            }
        }
    }

    /// Waits until something happens, or is due.
    async fn wait(&mut self, mut alarm: Pin<&mut Sleep>) {
        let end = match self.stage {
            Stage::Runs => None,
            Stage::Flushes(at, _) | Stage::Closes(at) => Some(at),
        };
        let carriers = self.carriers.iter().filter_map(|carrier| carrier.next_deadline());
        let next = carriers.chain(self.core.next_deadline()).chain(end).min();
        let far = Instant::now() + LONG;
        let next = next.and_then(|next| self.clock.instant(next));
        alarm
            .as_mut()
            .reset(next.map_or(far, |next| far.min(next.into())));
        poll_fn(|cx| {
            let any = self.look(cx);
            if any || alarm.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    /// Handles requests and events; returns whether there were any.
    fn look(&mut self, cx: &mut Context<'_>) -> bool {
        let (mut any, now) = (false, self.clock.now());
        for _ in 0..ASKED {
            match self.mailbox.poll_recv(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Message::Request(request))) => {
                    any = true;
                    self.core.request(now, request);
                    self.carry(now);
                }
                Poll::Ready(Some(Message::Finish(within))) => {
                    any = true;
                    self.finish(now, within);
                }
                // All mailboxes were dropped.
                Poll::Ready(None) => {
                    any |= self.stage == Stage::Runs;
                    self.finish(now, Duration::ZERO);
                    break;
                }
            }
        }
        for at in 0..self.carriers.len() {
            any |= self.carriers[at].poll(cx, now).is_ready();
        }
        self.carry(now);
        any
    }

    /// Passes events to the core and commands to the transports, until there are none.
    fn carry(&mut self, now: Time) {
        loop {
            let mut any = false;
            for (at, carrier) in self.carriers.iter_mut().enumerate() {
                while let Some(event) = carrier.event() {
                    any = true;
                    self.core.handle(now, TransportId(at as u8), event);
                }
            }
            while let Some((transport, command)) = self.core.command() {
                any = true;
                if let Some(carrier) = self.carriers.get_mut(usize::from(transport.0)) {
                    carrier.command(now, command);
                }
            }
            if !any {
                return;
            }
        }
    }

    fn finish(&mut self, now: Time, within: Duration) {
        if self.stage == Stage::Runs {
            self.stage = Stage::Flushes(now + within / 2, now + within);
        }
    }

    /// Continues the end; returns whether it is complete.
    fn is_over(&mut self, now: Time) -> bool {
        if let Some(&within) = self.left.get() {
            self.finish(now, within);
        }
        if self.core.is_over() {
            self.finish(now, FAREWELL);
        }
        if let Stage::Flushes(until, end) = self.stage
            && (self.core.is_quiet() || now >= until)
        {
            self.core.end(now);
            self.carry(now);
            self.carriers.iter_mut().for_each(|carrier| carrier.leave(now));
            self.carry(now);
            self.stage = Stage::Closes(end);
        }
        let Stage::Closes(end) = self.stage else {
            return false;
        };
        now >= end || self.carriers.iter().all(|carrier| carrier.is_quiet())
    }
}
