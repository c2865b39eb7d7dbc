//! Two replicas of 1 GiB, one receiver: which host sends what, and the least possible time.

use ropewalk::{ByteRate, Error};

/// Prints the plan.
pub fn main() -> Result<(), Error> {
    let specification = "\
        writer old.example:7420 /data/set 0 0+1GiB up=500Mbit/s\n\
        writer new.example:7420 /data/set 0 0+1GiB up=1Gbit/s\n\
        reader lab.example:7420 /data/set 0 0+1GiB down=10Gbit/s\n";
    let plan = ropewalk::plan(specification, ByteRate::from_bits_per_second(1_000_000_000))?;
    for transfer in &plan.transfers {
        println!(
            "{} sends {} bytes to {}",
            transfer.writer,
            transfer.end - transfer.start,
            transfer.reader
        );
    }
    println!(
        "{:.2} s, at least {:.2} s by {}",
        plan.predicted_seconds,
        plan.bound_seconds,
        plan.binding.join(", ")
    );
    Ok(())
}
