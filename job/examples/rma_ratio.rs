use doorbell_fabric::atomics::{Arithmetic, Element};
use doorbell_fabric::memory::{ConstLoan, MutLoan, Region};
use doorbell_job::Config;
use doorbell_job::lobby::{Address, PmlMember};
use doorbell_pml::Target;
use doorbell_pml::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;
const KEY: u64 = 0x1234_5678_9abc_0007;
const MB: usize = 1 << 20;
fn config(rails: &str) -> Config {
    let mut config = Config::default();
    config.set("rails.list", rails).unwrap();
    config
}
struct Pm {
    member: PmlMember,
    polls: u32,
    window: MutLoan,
}
impl Pm {
    fn new(rails: &str) -> Self {
        let mut member = PmlMember::enter(config(rails)).unwrap();
        let window = MutLoan::of_static(vec![0u64; MB / 8 + 512].leak().as_mut_bytes());
        for key in 0..16 {
            member
                .pml()
                .open_window(WindowArgs {
                    key,
                    base: 0,
                    memory: WindowMemory::Loans(vec![window]),
                    access: WindowAccess::ALL,
                })
                .unwrap();
        }
        member
            .pml()
            .open_window(WindowArgs {
                key: KEY,
                base: 0,
                memory: WindowMemory::Loans(vec![window]),
                access: WindowAccess::ALL,
            })
            .unwrap();
        Self {
            member,
            polls: 0,
            window,
        }
    }
    #[inline]
    fn turn(&mut self) {
        let pml = self.member.own_pml();
        pml.poll();
        self.polls += 1;
        if self.polls % 64 == 0 || self.member.own_pml().wants_time() {
            self.member.progress();
        }
    }
}
use zerocopy::IntoBytes;
fn leak(n: usize) -> (ConstLoan, MutLoan) {
    (
        ConstLoan::of_static(vec![7; n].leak()),
        MutLoan::of_static(vec![0; n].leak()),
    )
}
const IDLE: u32 = 0;
const PML: u32 = 1;
const ECHO: u32 = 2;
const BIG: u32 = 4;
fn target(
    rails: String,
    mode: Arc<AtomicU32>,
    ready: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    give: std::sync::mpsc::Sender<Address>,
    take: std::sync::mpsc::Receiver<Address>,
) {
    let mut pm = Pm::new(&rails);
    give.send(pm.member.address(0)).unwrap();
    let back = loop {
        pm.turn();
        pm.member.progress();
        if let Ok(address) = take.try_recv() {
            break address;
        }
    };
    let to = pm.member.resolve(&back).unwrap();
    let (from8, into8) = leak(8);
    let big = Region::new(MB).unwrap();
    let post_big = |pml: &mut Pml<doorbell_job::rails::AnyRail>| {
        pml.recv(RecvArgs {
            from: Source::Any,
            context: 0x100,
            tag: 7,
            ignore: 0xff << 32,
            target: Target::Region(big.whole()),
            notify: false,
        })
        .unwrap()
    };
    let mut now = IDLE;
    let mut posted: Option<RequestId> = None;
    while !stop.load(Ordering::Relaxed) {
        let wanted = mode.load(Ordering::Relaxed);
        if wanted != now {
            if let Some(id) = posted.take() {
                pm.member.pml().cancel(id);
                let _ = pm.member.pml().test(id);
            }
            now = wanted;
            let pml = pm.member.own_pml();
            posted = match now {
                ECHO => Some(pml.recv_loan(Source::Any, 0x100, 7, 0xff << 32, into8).unwrap()),
                BIG => Some(post_big(pml)),
                _ => None,
            };
            ready.store(now, Ordering::Release);
        }
        pm.turn();
        if now == IDLE {
            pm.member.progress();
        }
        if let Some(id) = posted
            && let Some(status) = pm.member.own_pml().test(id)
        {
            status.unwrap();
            let pml = pm.member.own_pml();
            if now == ECHO {
                let sent = pml.send_loan(to, 0x100, 7, from8).unwrap();
                pml.flush();
                assert_eq!(sent, Sent::Done);
            }
            posted = Some(if now == BIG {
                post_big(pml)
            } else {
                pml.recv_loan(Source::Any, 0x100, 7, 0xff << 32, into8).unwrap()
            });
        }
    }
    let _ = pm.window;
}
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rails = args[0].clone();
    let slices: usize = args[1].parse().unwrap();
    let ops: u64 = args[2].parse().unwrap();
    let mb_ops: u64 = args[3].parse().unwrap();
    let (mode, ready, stop) = (
        Arc::new(AtomicU32::new(IDLE)),
        Arc::new(AtomicU32::new(IDLE)),
        Arc::new(AtomicBool::new(false)),
    );
    let (give, got) = channel();
    let (give_back, take) = channel();
    let thread = {
        let (rails, mode, ready, stop) = (rails.clone(), mode.clone(), ready.clone(), stop.clone());
        std::thread::spawn(move || {
            pin(1);
            target(rails, mode, ready, stop, give, take)
        })
    };
    pin(0);
    let mut pm = Pm::new(&rails);
    let address = got.recv().unwrap();
    give_back.send(pm.member.address(0)).unwrap();
    let to = pm.member.resolve(&address).unwrap();
    let set = |wanted: u32| {
        mode.store(wanted, Ordering::Relaxed);
        while ready.load(Ordering::Acquire) != wanted {
            std::hint::spin_loop();
        }
    };
    let (from8, into8) = leak(8);
    let (from_big, into_big) = leak(MB);
    let big = Region::new(MB).unwrap();
    set(ECHO);
    for _ in 0..100 {
        let id = pm
            .member
            .pml()
            .recv_loan(Source::Any, 0x100, 7, 0xff << 32, into8)
            .unwrap();
        let sent = pm.member.pml().send_loan(to, 0x100, 7, from8).unwrap();
        pm.member.flush();
        while !pm.member.pml().is_done(id) {
            pm.turn();
            pm.member.progress();
        }
        pm.member.pml().test(id);
        if let Sent::Pending(sent) = sent {
            pm.member.pml().test(sent);
        }
    }
    let names = [
        "tagged 8 B, posted, there and back",
        "put 8 B",
        "get 8 B",
        "fetch-add 8 B",
        "message 1 MiB, synchronous",
        "put 1 MiB",
        "get 1 MiB",
    ];
    let modes = [ECHO, PML, PML, PML, BIG, PML, PML];
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
    let at8 = RemotePiece {
        key: KEY,
        address: 8,
        length: 8,
    };
    let at_big = RemotePiece {
        key: KEY,
        address: 0,
        length: MB as u64,
    };
    for slice in 0..slices + 1 {
        for (at, _) in names.iter().enumerate() {
            set(modes[at]);
            let count = if at >= 4 { mb_ops } else { ops };
            if std::env::var("ONLY").is_ok_and(|only| only != at.to_string()) {
                continue;
            }
            if count == 0 {
                continue;
            }
            let start = Instant::now();
            for _ in 0..count {
                let pml = pm.member.own_pml();
                let id = match at {
                    0 => {
                        let id = pml.recv_loan(Source::Any, 0x100, 7, 0xff << 32, into8).unwrap();
                        let sent = pml.send_loan(to, 0x100, 7, from8).unwrap();
                        assert_eq!(sent, Sent::Done);
                        id
                    }
                    1 => pml.put_loan(to, 0x100, at8, from8, false).unwrap(),
                    2 => pml
                        .get(GetArgs {
                            from: to,
                            context: 0x100,
                            at: at8.into(),
                            target: Target::Loan(into8),
                            notify: false,
                        })
                        .unwrap(),
                    3 => pml
                        .atomic(AtomicArgs {
                            to,
                            context: 0x100,
                            at: at8.into(),
                            arithmetic: Arithmetic::Sum,
                            element: Element::Uint64,
                            operands: Payload::Loan(from8),
                            compare: Payload::Loan(ConstLoan::EMPTY),
                            fetch: Some(Target::Loan(into8)),
                            notify: false,
                        })
                        .unwrap(),
                    4 => match pml
                        .send(SendArgs {
                            to,
                            context: 0x100,
                            tag: 7,
                            payload: Payload::Region(big.whole()),
                            mode: SendMode::Synchronous,
                            notify: false,
                        })
                        .unwrap()
                    {
                        Sent::Pending(id) => id,
                        _ => panic!(),
                    },
                    5 => pml.put_loan(to, 0x100, at_big, from_big, false).unwrap(),
                    _ => pml
                        .get(GetArgs {
                            from: to,
                            context: 0x100,
                            at: at_big.into(),
                            target: Target::Loan(into_big),
                            notify: false,
                        })
                        .unwrap(),
                };
                pml.flush();
                loop {
                    if let Some(status) = pm.member.own_pml().test(id) {
                        status.unwrap();
                        break;
                    }
                    pm.turn();
                }
            }
            if slice > 0 {
                all[at].push(start.elapsed().as_nanos() as f64 / count as f64);
            }
        }
    }
    let median = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        if v.is_empty() { f64::NAN } else { v[v.len() / 2] }
    };
    let (base, base_big) = (median(&mut all[0]), median(&mut all[4]));
    println!("rails {rails}, {slices} slices of {ops}");
    for (at, (name, times)) in names.iter().zip(&mut all).enumerate() {
        let m = median(times);
        println!(
            "{name:40} median {m:10.1} ns  least {:10.1}  ratio {:.3}",
            times.first().copied().unwrap_or(0.),
            m / if at >= 4 { base_big } else { base }
        );
    }
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}
fn pin(core: usize) {
    core_affinity::set_for_current(core_affinity::CoreId { id: core });
}
