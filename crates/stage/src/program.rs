//! Frames between a stage and its program, and what a program that is written in Rust needs of them.
//!
//! On standard input and output each block is its length (4 bytes, little endian) and its content, no longer than the stream's
//! blocks. Standard input is closed after the last block; the program then ends with status 0.

use std::io::{self, Read, Write};

/// Bytes of the length before each block.
pub(crate) const PREFIX_LEN: usize = 4;

/// Calls `handle` for each block on standard input; what it writes to its second argument is one block each on standard output.
///
/// ```no_run
/// // A stage that passes on the blocks that do not begin with a zero.
/// fn main() -> std::io::Result<()> {
///     ropewalk_stage::each_block(|block, pass_on| match block.first() {
///         Some(0) => Ok(()),
///         _ => pass_on(block),
///     })
/// }
/// ```
///
/// # Errors
/// Reading, writing, or what `handle` returns; unexpected end of file where the input ends within a block.
pub fn each_block(
    handle: impl FnMut(&[u8], &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
) -> io::Result<()> {
    let output = io::BufWriter::new(io::stdout().lock());
    each_block_of(io::stdin().lock(), output, handle)
}

/// As [`each_block`], over other streams.
///
/// # Errors
/// As [`each_block`].
pub fn each_block_of(
    mut input: impl Read,
    mut output: impl Write,
    mut handle: impl FnMut(&[u8], &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
) -> io::Result<()> {
    let mut block = Vec::new();
    loop {
        let mut prefix = [0; PREFIX_LEN];
        // The input may end before a prefix, not within one.
        if input.read(&mut prefix[..1])? == 0 {
            return output.flush();
        }
        input.read_exact(&mut prefix[1..])?;
        block.resize(u32::from_le_bytes(prefix) as usize, 0);
        input.read_exact(&mut block)?;
        handle(&block, &mut |content| {
            let too_long =
                |_| io::Error::new(io::ErrorKind::InvalidInput, "a block is below 4 GiB");
            let length = u32::try_from(content.len()).map_err(too_long)?;
            output.write_all(&length.to_le_bytes())?;
            output.write_all(content)
        })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks keep their bounds; an input that ends within one is an error.
    #[test]
    fn blocks_keep_their_bounds() {
        let input = b"\x01\0\0\0a\0\0\0\0\x02\0\0\0bc";
        let mut output = Vec::new();
        each_block_of(&input[..], &mut output, |block, pass_on| {
            pass_on(block)?;
            if block.len() == 2 {
                pass_on(b"!")
            } else {
                Ok(())
            }
        })
        .unwrap();
        assert_eq!(output, b"\x01\0\0\0a\0\0\0\0\x02\0\0\0bc\x01\0\0\0!");
        for len in [2, input.len() - 1] {
            let error = each_block_of(&input[..len], io::sink(), |_, _| Ok(())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
