//! A region over two nodes, which are two servers of this process here: the first half is in memory of one, the second in memory of both.

use std::time::Duration;

use ropewalk::{Buffer, Error, Exposed, Region, RegionOptions, RegionServer, Rule};

const SIZE: u64 = 1 << 20;

/// Serves, reads and writes.
pub fn main() -> Result<(), Error> {
    let options = RegionOptions::default();
    let half = SIZE / 2;
    let left = RegionServer::bind(&[([127, 0, 0, 1], 0).into()], &options)?;
    let right = RegionServer::bind(&[([127, 0, 0, 1], 0).into()], &options)?;
    let memory = |start, len: u64| Exposed::memory(start, Buffer::writable(vec![0; len as usize]));
    left.serve("table", SIZE, Rule::All, vec![memory(0, SIZE)])?;
    right.serve("table", SIZE, Rule::All, vec![memory(half, half)])?;

    let region = Region::connect("table", &[left.addresses(), right.addresses()], &options)?;
    // Both nodes have it when this returns.
    region.put(half, b"two holders")?;
    assert_eq!(region.get(half..half + 11)?, b"two holders");

    // Many under way at once; the answers of small ranges of one node are one message.
    let rows: Vec<_> = (0..1000).map(|row| row * 64..row * 64 + 8).collect();
    let get = region.get_start(&rows)?;
    for (row, range) in rows.iter().enumerate() {
        drop(region.put_start(range.start + 16, vec![row as u8; 8])?);
    }
    region.flush()?;
    assert_eq!(get.wait()?.len(), 8000);

    // Another thread, process or host waits for what is announced here.
    let reader = Region::connect("table", &[left.addresses(), right.addresses()], &options)?;
    let waiting = std::thread::spawn(move || -> Result<Vec<u8>, Error> {
        reader.wait(0..4096, 1, Duration::from_secs(30))?;
        reader.get(16..24)
    });
    region.put(16, b"complete")?;
    region.notify(0..4096, 1)?;
    assert_eq!(
        waiting.join().expect("the reader does not panic")?,
        b"complete"
    );
    println!(
        "{} bytes on {} nodes",
        region.size(),
        region.holders().len()
    );
    Ok(())
}
