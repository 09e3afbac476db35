//! Traffic patterns: which nodes send what to which.

use doorbell_sim::Random;

use super::CreditsJob;

/// A pattern of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Every node sends full messages to rank 0, as fast as it can
    FanIn,
    /// A 3-D torus: in each step 16 full messages to each of 6 faces, 4 to each of 12 edges, 2 to each of 8
    /// corners: 640 credits; the next step begins when all are answered and all neighbours' are there
    Stencil,
    /// Four partners each, and one message in 32 to one of 64 others
    Partners,
    /// The same, with other partners in each phase
    Phases,
    /// All to all within groups of up to 128, two full messages to each, again and again, with quiet times
    /// between
    Bursts,
    /// Partners who never need more than they have: nothing may move
    Quiet,
}

impl Pattern {
    /// All patterns, in their order.
    pub const ALL: [Self; 6] = [
        Self::FanIn,
        Self::Stencil,
        Self::Partners,
        Self::Phases,
        Self::Bursts,
        Self::Quiet,
    ];

    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FanIn => "fan-in",
            Self::Stencil => "stencil",
            Self::Partners => "partners",
            Self::Phases => "phases",
            Self::Bursts => "bursts",
            Self::Quiet => "quiet",
        }
    }

    /// Returns the credits that a node has beside the least of every node: what it takes to serve the
    /// pattern, and a little more.
    pub(super) const fn bank(self) -> u32 {
        match self {
            Self::FanIn | Self::Quiet => 64,
            // 640, of which 26 neighbours have 4 each.
            Self::Stencil => 640 - 26 * 4 + 32,
            Self::Partners => 288,
            Self::Phases => 288,
            // Four more for each of 127.
            Self::Bursts => 540,
        }
    }

    /// Epochs that it takes until credits are where they are needed, and a while longer; fewer where a run
    /// takes minutes.
    pub(super) const fn epochs(self, nodes: u32) -> u32 {
        let few = nodes <= 256;
        match self {
            Self::FanIn => 100,
            Self::Stencil if few => 48,
            Self::Stencil => 28,
            Self::Partners if few => 16,
            Self::Partners => 12,
            // Six phases, or three.
            Self::Phases if few => 48,
            Self::Phases => 24,
            Self::Bursts if few => 48,
            Self::Bursts => 24,
            Self::Quiet if few => 4,
            Self::Quiet => 1,
        }
    }

    /// Ticks between two requests of a node that does not wait.
    pub(super) const fn gap(self) -> u64 {
        match self {
            Self::FanIn | Self::Stencil | Self::Bursts => 1,
            Self::Partners | Self::Phases => 2,
            Self::Quiet => 200,
        }
    }
}

/// What a node does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A request of this many credits; whether it is for a frequent partner.
    Send { to: u32, credits: u8, ours: bool },
    /// Nothing before something arrives.
    Wait,
    /// Nothing for this many ticks.
    Pause(u64),
}

/// Partners of a node in the patterns that have some.
pub(super) const PARTNERS: u32 = 4;
/// Requests of a node that are not answered, where nothing else limits them: more than credits ever allow.
const MOST_AHEAD: u32 = 256;
const ACQUAINTANCES: u64 = 64;
/// How long a phase is, in epochs of a node that receives as fast as the pattern sends.
pub(super) const PHASE_EPOCHS: u32 = 8;
const GROUP: u32 = 128;
const FULL: u8 = 4;

/// One node's part in a pattern.
#[derive(Debug)]
pub(super) struct Player {
    pattern: Pattern,
    me: u32,
    nodes: u32,
    random: Random,
    /// Of steps and bursts: the destinations, and how many messages each.
    targets: Vec<(u32, u16)>,
    /// Where in them.
    at: usize,
    of: u16,
    /// Begun steps, and what came and is missing of them.
    step: u64,
    unanswered: u32,
    received: u64,
    per_step: u64,
}

impl Player {
    pub(super) fn new(pattern: Pattern, seed: u64, me: u32, nodes: u32) -> Self {
        let targets = match pattern {
            Pattern::Stencil => neighbours(me, nodes),
            Pattern::Bursts => group(me, nodes),
            _ => Vec::new(),
        };
        Self {
            pattern,
            me,
            nodes,
            random: Random::for_part(seed, &[7, me.into()]),
            per_step: targets.iter().map(|&(_, count)| u64::from(count)).sum(),
            targets,
            at: 0,
            of: 0,
            step: 0,
            unanswered: 0,
            received: 0,
        }
    }

    /// Steps that are complete.
    pub(super) const fn steps(&self) -> u64 {
        self.step
    }

    /// A request of another was handled.
    #[inline]
    pub(super) fn received(&mut self) {
        self.received += 1;
    }

    /// A request was answered.
    #[inline]
    pub(super) fn answered(&mut self) {
        self.unanswered -= 1;
    }

    /// The next one; a request that it names counts as begun.
    pub(super) fn next(&mut self, job: &CreditsJob, now: u64) -> Next {
        let seed = job.seed;
        let next = match self.pattern {
            // Without credits every node would be ahead by as much as there is time.
            Pattern::FanIn if self.me == 0 || self.unanswered >= MOST_AHEAD => Next::Wait,
            Pattern::FanIn => full(0),
            Pattern::Stencil => self.in_steps(0),
            Pattern::Bursts => self.in_steps(900),
            Pattern::Partners => self.partner(seed, 0),
            Pattern::Phases => self.partner(seed, now / job.phase_ticks()),
            Pattern::Quiet => self.partner(seed, 0),
        };
        if matches!(next, Next::Send { .. }) {
            self.unanswered += 1;
        }
        next
    }

    fn partner(&mut self, seed: u64, phase: u64) -> Next {
        if self.random.below(32) == 0 {
            let which = self.random.below(ACQUAINTANCES);
            let spread = Random::for_part(seed, &[9, self.me.into(), which]).next_u64();
            let to = (u64::from(self.me) + 1 + spread % u64::from(self.nodes - 1)) % u64::from(self.nodes);
            return Next::Send {
                to: to as u32,
                credits: 1 + self.random.below(FULL.into()) as u8,
                ours: false,
            };
        }
        let which = self.random.below(PARTNERS.into());
        full(partner(seed, phase, which, self.me, self.nodes))
    }

    fn in_steps(&mut self, pause: u64) -> Next {
        if self.at == self.targets.len() {
            let whole = self.received >= (self.step + 1) * self.per_step;
            if self.unanswered > 0 || !whole {
                return Next::Wait;
            }
            self.step += 1;
            (self.at, self.of) = (0, 0);
            if pause > 0 {
                return Next::Pause(pause);
            }
        }
        // Every node begins elsewhere, or all would send to the same node first.
        let count = self.targets.len();
        let (to, messages) = self.targets[(self.at + self.me as usize * 7) % count];
        self.of += 1;
        if self.of >= messages {
            (self.at, self.of) = (self.at + 1, 0);
        }
        full(to)
    }
}

const fn full(to: u32) -> Next {
    Next::Send {
        to,
        credits: FULL,
        ours: true,
    }
}

/// Each is the partner of as many as it has partners: by shifts around the ring, other ones for each phase.
fn partner(seed: u64, phase: u64, which: u64, me: u32, nodes: u32) -> u32 {
    let shift = Random::for_part(seed, &[8, phase, which]).below(u64::from(nodes) - 1) + 1;
    ((u64::from(me) + shift) % u64::from(nodes)) as u32
}

fn group(me: u32, nodes: u32) -> Vec<(u32, u16)> {
    let first = me / GROUP * GROUP;
    let last = (first + GROUP).min(nodes);
    (first..last).filter(|&to| to != me).map(|to| (to, 2)).collect()
}

/// The 26 neighbours on a torus of three sides that are as equal as they can be.
fn neighbours(me: u32, nodes: u32) -> Vec<(u32, u16)> {
    let [a, b, c] = sides(nodes);
    let place = [me % a, me / a % b, me / a / b];
    let mut all = Vec::new();
    for away in 1..27_u32 {
        let steps = [away % 3, away / 3 % 3, away / 9];
        let moved = |side: usize, of: u32| (place[side] + [0, 1, of - 1][steps[side] as usize]) % of;
        let to = moved(0, a) + a * (moved(1, b) + b * moved(2, c));
        let count = match steps.iter().filter(|&&step| step > 0).count() {
            1 => 16,
            2 => 4,
            _ => 2,
        };
        all.push((to, count));
    }
    all
}

/// Three sides of at least three each, as near to each other as possible; `[0; 3]` where there are none.
pub(super) fn sides(nodes: u32) -> [u32; 3] {
    let mut best = [0; 3];
    let mut least = u32::MAX;
    for a in 3..=nodes {
        if a * a * a > nodes {
            break;
        }
        if !nodes.is_multiple_of(a) {
            continue;
        }
        for b in a..=nodes / a {
            let c = nodes / a / b;
            if c < b {
                break;
            }
            if a * b * c == nodes && c - a < least {
                (best, least) = ([a, b, c], c - a);
            }
        }
    }
    best
}
