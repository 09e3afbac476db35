//! Every rank adds to a counter of rank 0 by an atomic, and when all have done so, a trigger at rank 0 sends
//! the sum to all of them.
//!
//! ```text
//! cargo build -p doorbell --example portals
//! doorbell run -n 4 target/debug/examples/portals
//! ```

use std::process::ExitCode;

use doorbell::fabric::memory::Region;
use doorbell::fabric::message::Landing;
use doorbell::fabric::ni::{
    AckReq, Atomic, AtomicKind, Datatype, Entry, EntryOptions, Kind, List, Md, Memory, Piece, Process,
    PtOptions, Put, Target, Triggered,
};

const KIND: Kind = Kind::MATCHING_LOGICAL;
const INDEX: u32 = 4;
/// Match bits of the sum, and of the message that it is complete.
const SUM: u64 = 1;
const WHOLE: u64 = 2;

fn main() -> ExitCode {
    match add_up() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("portals: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn add_up() -> Result<(), doorbell::Error> {
    let mut job = doorbell::Builder::new().build_portals()?;
    job.init(KIND, None)?;
    let (sum, own) = (Region::new(8)?, Region::new(8)?);
    own.write(0, &(u64::from(job.rank()) + 1).to_le_bytes());

    // Memory that others may access: the sum, and the place where they report that it is complete. Both
    // count.
    let (added, reported) = (
        job.ask(KIND, |ni| ni.ct_alloc())?,
        job.ask(KIND, |ni| ni.ct_alloc())?,
    );
    job.ask(KIND, |ni| ni.pt_alloc(PtOptions::NONE, None, Some(INDEX)))?;
    let options = EntryOptions::OP_PUT | EntryOptions::EVENT_CT_COMM;
    for (bits, count) in [(SUM, added), (WHOLE, reported)] {
        let memory = Memory::One(Landing::Region(sum.whole()));
        let entry = Entry::open(memory, options).matching(bits, 0).counted(count);
        job.ask(KIND, |ni| ni.append(INDEX, entry.clone(), List::Priority, 0))?;
    }
    let bind = |memory: &Region| Md {
        memory: Memory::One(Landing::Region(memory.whole())),
        ..Md::default()
    };
    let (from_own, from_sum) = (bind(&own), bind(&sum));
    let from_own = job.ask(KIND, |ni| ni.md_bind(from_own.clone()))?;
    let from_sum = job.ask(KIND, |ni| ni.md_bind(from_sum.clone()))?;
    let to = |rank, match_bits, md| Put {
        from: Piece { md, offset: 0 },
        length: 8,
        ack: AckReq::None,
        target: Target {
            process: Process::rank(rank),
            pt_index: INDEX,
            match_bits,
            remote_offset: 0,
        },
        user_ptr: 0,
        hdr_data: 0,
    };

    // Rank 0 sends the sum to the others when all have added to it, whatever it does meanwhile.
    let all = u64::from(job.size());
    if job.rank() == 0 {
        for rank in 1..job.size() {
            let put = Triggered::Put(to(rank, WHOLE, from_sum));
            job.ask(KIND, |ni| ni.trigger(added, all, put.clone()))?;
        }
    }
    job.barrier()?;
    let add = Atomic {
        put: to(0, SUM, from_own),
        kind: AtomicKind::Sum,
        datatype: Datatype::Uint64,
    };
    job.ask(KIND, |ni| ni.atomic(&add))?;
    match job.rank() {
        0 => job.wait_count(KIND, added, all)?,
        _ => job.wait_count(KIND, reported, 1)?,
    };
    let mut bytes = [0; 8];
    sum.read(0, &mut bytes);
    println!(
        "rank {}: 1 + … + {all} = {}",
        job.rank(),
        u64::from_le_bytes(bytes)
    );
    job.barrier()
}
