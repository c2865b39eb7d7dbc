//! Makes the demonstration's files and compares them.

use std::fs::File;
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};

/// Bytes read or written at once.
const BLOCK_LEN: usize = 1 << 20;

/// Writes a file of bytes that look random; equal `half` gives equal bytes, no two places look alike.
pub(super) fn make_half(path: &Path, half: u64, len: u64) -> Result<()> {
    let failed = || {
        format!(
            "cannot write {}; is the disk full? --size and --dir choose less or elsewhere",
            path.display()
        )
    };
    let mut file =
        BufWriter::with_capacity(BLOCK_LEN, File::create_new(path).with_context(failed)?);
    let mut left = len;
    let mut counter = half << 56;
    while left > 0 {
        counter += 1;
        let word = mixed(counter).to_le_bytes();
        let bytes = usize::try_from(left).map_or(word.len(), |left| left.min(word.len()));
        file.write_all(&word[..bytes]).with_context(failed)?;
        left -= bytes as u64;
    }
    file.into_inner()
        .map_err(std::io::IntoInnerError::into_error)
        .with_context(failed)?;
    Ok(())
}

/// One step of the SplitMix64 generator, as a function of its position.
fn mixed(counter: u64) -> u64 {
    let word = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Position of the first byte that differs between two stretches of files, counted from their starts;
/// a file that ends early differs there.
pub(super) fn first_difference(a: (&Path, u64), b: (&Path, u64), len: u64) -> Result<Option<u64>> {
    let open = |(path, at): (&Path, u64)| -> Result<std::io::Take<File>> {
        let mut file =
            File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        file.seek(SeekFrom::Start(at))
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok(file.take(len))
    };
    let (mut first, mut second) = (open(a)?, open(b)?);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut done = 0;
    while done < len {
        for (file, block, path) in [
            (&mut first, &mut ours, a.0),
            (&mut second, &mut theirs, b.0),
        ] {
            block.clear();
            let read = file.take(BLOCK_LEN as u64).read_to_end(block);
            read.with_context(|| format!("cannot read {}", path.display()))?;
        }
        if ours != theirs || ours.is_empty() {
            let same = ours.iter().zip(&theirs).take_while(|(x, y)| x == y).count();
            return Ok(Some(done + same as u64));
        }
        done += ours.len() as u64;
    }
    Ok(None)
}
