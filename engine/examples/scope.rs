//! Buffers lent to requests: each rank exchanges a long message with both neighbours at the same time.

fn main() -> Result<(), doorbell::Error> {
    let world = doorbell::init()?;
    let (rank, size) = (world.rank(), world.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let mine = vec![rank as u8; 1 << 20];
    let (mut from_left, mut from_right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    world.scope(|s| {
        let mut receives = [
            s.irecv(left, 1, &mut from_left)?,
            s.irecv(right, 2, &mut from_right)?,
        ];
        // These handles are not kept: the scope waits for the requests all the same.
        drop((s.isend(right, 1, &mine)?, s.isend(left, 2, &mine)?));
        world.wait_all(&mut receives)
    })?;
    println!(
        "rank {rank}: {} on the left, {} on the right",
        from_left[0], from_right[0]
    );
    world.barrier()
}
