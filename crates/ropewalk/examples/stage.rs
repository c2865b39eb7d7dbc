//! A stage of a stream: passes on the blocks that hold more than zeros. `ropewalk stream ... --exec B=PROGRAM` runs it.

/// Reads blocks from standard input until it ends.
pub fn main() -> std::io::Result<()> {
    ropewalk::each_block(|block, pass_on| match block.iter().any(|&byte| byte != 0) {
        true => pass_on(block),
        false => Ok(()),
    })
}
