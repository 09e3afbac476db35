//! Contact of rails in one process, by letters that none is lost of.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::error::RailError;
use doorbell_fabric::event::{DownReason, Life};
use doorbell_fabric::message::{Caller, Incarnation};
use doorbell_fabric::time::Time;

use crate::rc::hello::{Hello, Route};
use crate::rc::rail::{Contact, Told};
use crate::sys::AhAttr;

/// A letter, which names the try of the sender and, where it answers one, that of the receiver.
#[derive(Clone, Copy, Debug)]
enum Word {
    Call(Hello),
    Answer(Hello),
    Ready,
    Gone(DownReason),
}

#[derive(Clone, Copy, Debug)]
struct Letter {
    from: (u32, u64),
    to: (u32, u64),
    word: Word,
    tried: u64,
    answers: u64,
    life: Life,
}

/// Where letters lie, by who they are for.
#[derive(Default)]
pub(super) struct Office {
    boxes: HashMap<(u32, u64), VecDeque<Letter>>,
}

/// What a peer's connection has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    /// Our end is to be made, to call or to answer the peer's try.
    Making {
        answers: Option<(Hello, u64, Life)>,
    },
    Called,
    Connected {
        theirs: u64,
    },
}

struct Known {
    id: (u32, u64),
    tried: u64,
    step: Step,
    life: Life,
    /// Words that wait for the end of the connection before.
    letters: VecDeque<Letter>,
    /// Our answer, until our end receives.
    answer: Option<Letter>,
}

pub(super) struct Direct {
    office: Rc<RefCell<Office>>,
    own: (u32, u64),
    address: [u8; 4],
    known: Vec<Known>,
    strangers: VecDeque<Letter>,
    told: VecDeque<Caller>,
    ready: VecDeque<Told>,
    /// Nothing is sent any more.
    pub(super) is_mute: bool,
}

fn name((id, life): (u32, u64)) -> Caller {
    Caller(u128::from(id) << 64 | u128::from(life))
}

impl Direct {
    pub(super) fn new(office: &Rc<RefCell<Office>>, own: (u32, u64), address: [u8; 4]) -> Self {
        office.borrow_mut().boxes.insert(own, VecDeque::new());
        Self {
            office: Rc::clone(office),
            own,
            address,
            known: Vec::new(),
            strangers: VecDeque::new(),
            told: VecDeque::new(),
            ready: VecDeque::new(),
            is_mute: false,
        }
    }

    fn send(&mut self, peer: u32, word: Word, answers: u64) {
        if self.is_mute {
            return;
        }
        let known = &self.known[peer as usize];
        let letter = Letter {
            from: self.own,
            to: known.id,
            word,
            tried: known.tried,
            answers,
            life: known.life,
        };
        if let Some(letters) = self.office.borrow_mut().boxes.get_mut(&known.id) {
            letters.push_back(letter);
        }
    }

    fn id_of(address: &RailAddress) -> Option<(u32, [u8; 4])> {
        let bytes: [u8; 8] = address.native_of("verbs")?.try_into().ok()?;
        let (id, ip) = bytes.split_at(4);
        Some((u32::from_le_bytes(id.try_into().ok()?), ip.try_into().ok()?))
    }

    /// The route to an end whose address is its number's.
    fn route(peer: u32) -> Route {
        let mut to = AhAttr::zeroed();
        to.grh.dgid.0 = [
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            255,
            255,
            127,
            1,
            (peer >> 8) as u8,
            peer as u8,
        ];
        (to.is_global, to.port_num) = (1, 1);
        Route { to, mtu: 3 }
    }

    fn read(&mut self, peer: u32, letter: Letter) -> Option<Told> {
        let known = &mut self.known[peer as usize];
        match letter.word {
            Word::Call(hello) => match known.step {
                // Of two that call at once, the lower one's call counts.
                Step::Called | Step::Making { answers: None } if self.own < letter.from => None,
                Step::Connected { .. } => {
                    known.letters.push_front(letter);
                    known.step = Step::Nothing;
                    Some(Told::Gone(peer, DownReason::Abandoned))
                }
                _ => {
                    known.life = Life(known.life.0.max(letter.life.0.wrapping_sub(1)).wrapping_add(1));
                    known.tried += 1;
                    known.step = Step::Making {
                        answers: Some((hello, letter.tried, known.life)),
                    };
                    Some(Told::Calls(peer))
                }
            },
            Word::Answer(hello) if known.step == Step::Called && letter.answers == known.tried => {
                known.life = letter.life;
                known.step = Step::Connected { theirs: letter.tried };
                known.answer = None;
                Some(Told::Says(peer, hello, Self::route(known.id.0), known.life))
            }
            Word::Ready if known.step == (Step::Connected { theirs: letter.tried }) => {
                Some(Told::Ready(peer))
            }
            Word::Gone(reason) if known.step == (Step::Connected { theirs: letter.tried }) => {
                known.step = Step::Nothing;
                Some(Told::Gone(peer, reason))
            }
            _ => None,
        }
    }
}

impl Contact for Direct {
    fn address(&self) -> RailAddress {
        RailAddress::native("verbs", [self.own.0.to_le_bytes(), self.address].concat())
    }

    fn open(&mut self, address: &RailAddress, life: Incarnation, next: u32) -> Result<u32, RailError> {
        let Some((id, _)) = Self::id_of(address) else {
            return Err(RailError::BadAddress {
                rail: "verbs".to_owned(),
                address: address.to_string(),
                reason: "is of another kind of rail, or too short",
            });
        };
        let id = (id, life.0);
        if let Some(at) = self.known.iter().position(|known| known.id == id) {
            return Ok(at as u32);
        }
        let letters = self
            .strangers
            .iter()
            .filter(|letter| letter.from == id)
            .copied()
            .collect();
        self.strangers.retain(|letter| letter.from != id);
        self.known.push(Known {
            id,
            tried: 0,
            step: Step::Nothing,
            life: Life::FIRST,
            letters,
            answer: None,
        });
        Ok(next)
    }

    fn caller(&self, address: &RailAddress, life: Incarnation) -> Option<Caller> {
        Some(name((Self::id_of(address)?.0, life.0)))
    }

    fn stranger(&mut self) -> Option<Caller> {
        self.told.pop_front()
    }

    fn call(&mut self, peer: u32) {
        let known = &mut self.known[peer as usize];
        if known.step == Step::Nothing {
            known.tried += 1;
            known.step = Step::Making { answers: None };
            self.ready.push_back(Told::Calls(peer));
        }
    }

    fn say(&mut self, peer: u32, ours: &Hello) {
        let known = &mut self.known[peer as usize];
        match known.step {
            Step::Making { answers: None } => {
                known.step = Step::Called;
                known.life = Life(known.life.0 + 1);
                self.send(peer, Word::Call(*ours), 0);
            }
            Step::Making {
                answers: Some((hello, tried, life)),
            } => {
                known.step = Step::Connected { theirs: tried };
                let route = Self::route(known.id.0);
                self.ready.push_front(Told::Says(peer, hello, route, life));
                self.send_later(peer, *ours, tried);
            }
            _ => {}
        }
    }

    fn receives(&mut self, peer: u32) {
        let Some(letter) = self.known[peer as usize].answer.take() else {
            self.send(peer, Word::Ready, 0);
            return self.ready.push_back(Told::Ready(peer));
        };
        if let Some(letters) = self.office.borrow_mut().boxes.get_mut(&letter.to) {
            letters.push_back(letter);
        }
    }

    fn gone(&mut self, peer: u32, reason: DownReason) {
        self.send(peer, Word::Gone(reason), 0);
        let known = &mut self.known[peer as usize];
        (known.step, known.answer) = (Step::Nothing, None);
        self.ready
            .retain(|told| !matches!(told, Told::Calls(of) | Told::Ready(of) if *of == peer));
    }

    fn next(&mut self, _: Time, is_busy: &dyn Fn(u32) -> bool) -> Option<Told> {
        if let Some(told) = self.ready.pop_front() {
            return Some(told);
        }
        while let Some(letter) = self.pick() {
            match self.known.iter().position(|known| known.id == letter.from) {
                Some(at) => self.known[at].letters.push_back(letter),
                None => {
                    if matches!(letter.word, Word::Call(_)) {
                        self.told.push_back(name(letter.from));
                    }
                    self.strangers.push_back(letter);
                }
            }
        }
        for at in 0..self.known.len() {
            while !is_busy(at as u32)
                && let Some(letter) = self.known[at].letters.pop_front()
            {
                if let Some(told) = self.read(at as u32, letter) {
                    return Some(told);
                }
            }
        }
        None
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }
}

impl Direct {
    fn pick(&mut self) -> Option<Letter> {
        self.office.borrow_mut().boxes.get_mut(&self.own)?.pop_front()
    }

    /// Keeps the answer until our end receives.
    fn send_later(&mut self, peer: u32, ours: Hello, answers: u64) {
        let known = &mut self.known[peer as usize];
        let letter = Letter {
            from: self.own,
            to: known.id,
            word: Word::Answer(ours),
            tried: known.tried,
            answers,
            life: known.life,
        };
        known.answer = Some(letter);
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.office.borrow_mut().boxes.remove(&self.own);
    }
}
