//! The layer of active messages: puts into the segment of rank 1 and gets from there, beside requests and
//! their replies. Rank 1 answers requests while it waits for the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use doorbell::am::{Am, Destination, Handlers, Remote, Setup, Source};
use doorbell::{Builder, Region};

use super::AROUND;
use super::args::OnesidedRankArgs;
use super::rank::{Operations, SHORT, TIMES, TOGETHER, measure, tell};
use crate::error::ToolError;

/// The handlers of a request and of its reply.
const ASK: u8 = 200;
const ANSWER: u8 = 201;

/// Runs a rank.
pub(super) fn rank(args: &OnesidedRankArgs) -> Result<(), ToolError> {
    let answers = Arc::new(AtomicU64::new(0));
    let setup = Setup::new(handlers(&answers)?, TOGETHER * args.bytes.max(8));
    let mut am = Builder::new().on_quiet(|_| {}).build_am(setup)?;
    am.set_deadline(AROUND + Duration::from_secs_f64(3.0 * args.seconds));
    if am.rank() == 0 {
        let mut leader = Leader::new(am, answers, args.bytes)?;
        let found = measure(&mut leader, args)?;
        tell(&found)?;
        am = leader.am;
    }
    am.barrier()?;
    am.exit(0)?;
    Ok(())
}

/// A request is answered by its own arguments.
fn handlers(answers: &Arc<AtomicU64>) -> Result<Handlers, ToolError> {
    let (mut handlers, answers) = (Handlers::new(), Arc::clone(answers));
    let numbered = |error| ToolError::from(doorbell::Error::from(error));
    handlers
        .request(ASK, |request| {
            let args: Vec<u32> = request.args().to_vec();
            // A reply that cannot be sent is the conduit's to report: the requester waits for it.
            let _ = request.reply_short(ANSWER, &args);
        })
        .map_err(numbered)?;
    handlers
        .reply(ANSWER, move |_| _ = answers.fetch_add(1, Ordering::Relaxed))
        .map_err(numbered)?;
    Ok(handlers)
}

/// The measuring end, which is rank 0.
struct Leader {
    am: Am,
    answers: Arc<AtomicU64>,
    asked: u64,
    word: Region,
    regions: Vec<Region>,
    bytes: usize,
}

impl Leader {
    fn new(am: Am, answers: Arc<AtomicU64>, bytes: usize) -> Result<Self, ToolError> {
        let region = |bytes| Region::new(bytes).map_err(doorbell::Error::from);
        let regions: Result<_, doorbell::Error> = (0..TOGETHER).map(|_| region(bytes)).collect();
        Ok(Self {
            am,
            answers,
            asked: 0,
            word: region(8)?,
            regions: regions?,
            bytes,
        })
    }

    /// Waits for the replies to all requests.
    fn answered(&mut self) -> Result<(), doorbell::Error> {
        let (answers, asked) = (&self.answers, self.asked);
        let all = || (answers.load(Ordering::Relaxed) >= asked).then_some(());
        self.am.wait_until("the replies to its requests", all)
    }

    /// Moves several pieces together.
    fn pieces(&mut self, operation: usize) -> Result<(), doorbell::Error> {
        let mut handles = Vec::with_capacity(TOGETHER);
        let length = self.bytes as u64;
        for (region, number) in self.regions.iter().zip(0..) {
            // The same place in both segments.
            let offset = number * length;
            let to = Remote { rank: 1, offset };
            match operation {
                0 => {
                    self.am.request_long(to, ASK, &[1, 2], region.whole())?;
                    self.asked += 1;
                }
                1 => handles.push(self.am.put_later(to, region.whole())?),
                2 => handles.push(self.am.put_later(to, Source::Segment { offset, length })?),
                3 => handles.push(self.am.get_later(region.whole(), to, length)?),
                _ => handles.push(self.am.get_later(Destination::Segment { offset }, to, length)?),
            }
        }
        for handle in handles {
            self.am.sync(handle)?;
        }
        self.answered()
    }
}

impl Operations for Leader {
    const OPERATIONS: &'static [&'static str] = &["message", "put", "get"];
    const MOVES: &'static [(&'static str, &'static str)] = &[
        ("message", "region"),
        ("put", "region"),
        ("put", "segment"),
        ("get", "region"),
        ("get", "segment"),
    ];

    fn short_turn(&mut self, operation: usize) -> Result<Duration, ToolError> {
        let to = Remote { rank: 1, offset: 0 };
        let mut begun = Instant::now();
        for number in 0..=SHORT {
            match operation {
                0 => {
                    self.am.request_short(1, ASK, &[1, 2])?;
                    self.asked += 1;
                    self.answered()?;
                }
                1 => self.am.put(to, &[7; 8])?,
                _ => self.am.get(self.word.whole(), to, 8)?,
            }
            if number == 0 {
                begun = Instant::now();
            }
        }
        Ok(begun.elapsed())
    }

    fn long_turn(&mut self, operation: usize) -> Result<Duration, ToolError> {
        let mut begun = Instant::now();
        for number in 0..=TIMES {
            self.pieces(operation)?;
            if number == 0 {
                begun = Instant::now();
            }
        }
        Ok(begun.elapsed())
    }
}
