//! Regions: memory and files of other processes, read and written one-sidedly.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::time::Duration;

use ropewalk::{Buffer, Exposed, Region, RegionGet, RegionOptions, RegionPut, RegionServer, Rule};

use crate::error::{Failure, c_string, guard, text, texts};
use crate::message::arguments;
use crate::process::Maker;
use crate::ropewalk_result::{ROPEWALK_OK, ROPEWALK_UNDER_WAY};
use crate::sigpipe::Shield;
use crate::{ropewalk_error, ropewalk_range, ropewalk_result};

/// Serves ranges of regions from memory and files of this process.
pub struct ropewalk_region_server {
    server: RegionServer,
    /// Memory by name of the region.
    lent: BTreeMap<String, Vec<Buffer>>,
    maker: Maker,
}

impl Drop for ropewalk_region_server {
    fn drop(&mut self) {
        // Before the memory is the caller's again no thread may touch it.
        for buffer in self.lent.values().flatten() {
            drop(buffer.take_back());
        }
    }
}

/// A region that is read and written from this process. Any number of threads use one.
pub struct ropewalk_region {
    region: Region,
}

/// A get or a put under way.
pub struct ropewalk_request {
    request: Request,
    maker: Maker,
}

impl ropewalk_request {
    fn new(request: Request) -> Self {
        let maker = Maker::this();
        Self { request, maker }
    }
}

enum Request {
    Get { get: RegionGet, memory: *mut u8 },
    Put(RegionPut),
}

/// Which nodes a put is sent to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ropewalk_rule {
    /// None: puts are refused.
    ROPEWALK_READ_ONLY = 0,
    /// All nodes that hold the range.
    ROPEWALK_ALL = 1,
    /// The one node that owns it.
    ROPEWALK_OWNER = 2,
}

/// A range of a region that a node holds, in memory, or in a file where `memory` is NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ropewalk_exposed {
    /// First byte in the region, and the byte behind the last.
    pub range: ropewalk_range,
    /// Its bytes, in memory of the caller.
    pub memory: *mut c_void,
    /// Else a file that has them.
    pub file: *const c_char,
    /// First of them in the file.
    pub file_offset: u64,
    /// Whether this node owns the range.
    pub owned: bool,
}

/// # Safety
/// `region` is NULL or was returned by [`ropewalk_region_connect`] and is not released.
unsafe fn region<'a>(region: *const ropewalk_region) -> Result<&'a Region, Failure> {
    // SAFETY: as this function demands.
    let region = unsafe { region.as_ref() };
    let region = region.ok_or(Failure::Misuse("the region is NULL"))?;
    Ok(&region.region)
}

/// Memory of the caller; none where it has no bytes.
fn memory(start: *const c_void, len: usize) -> Result<(), Failure> {
    match start.is_null() && len > 0 {
        true => Err(Failure::Misuse("the memory is NULL")),
        false => Ok(()),
    }
}

fn end(offset: u64, len: usize) -> Result<u64, Failure> {
    let end = offset.checked_add(len as u64);
    end.ok_or(Failure::Misuse("the range ends beyond 2^64"))
}

/// A wait's bound; a negative number for none.
fn bound(milliseconds: c_int) -> Duration {
    u64::try_from(milliseconds).map_or(Duration::MAX, Duration::from_millis)
}

/// Listens for origins on every address, which are the interfaces of each connection; port 0 lets the system choose one. At most 256 regions are connected to a
/// server at once.
///
/// * `token_file`: the file with the secret of all ends, with which data is sealed; NULL only between addresses of this host.
/// * `server`: where the server is put.
///
/// # Safety
/// As [`ropewalk_listener_new`](crate::ropewalk_listener_new).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_server_new(
    addresses: *const *const c_char,
    count: usize,
    token_file: *const c_char,
    server: *mut *mut ropewalk_region_server,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            if server.is_null() {
                return Err(Failure::Misuse("the place for the server is NULL"));
            }
            let (addresses, options) = arguments(addresses, count, token_file)?;
            let made = ropewalk_region_server {
                server: RegionServer::bind(&addresses, &options)?,
                lent: BTreeMap::new(),
                maker: Maker::this(),
            };
            *server = Box::into_raw(Box::new(made));
            Ok(ROPEWALK_OK)
        })
    }
}

/// Ends a server and releases it: memory that it was lent is the caller's again. NULL is permitted. In a child of the process that made it nothing is ended.
///
/// # Safety
/// `server` is NULL or was returned by [`ropewalk_region_server_new`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_server_free(server: *mut ropewalk_region_server) {
    let _shield = Shield::new();
    if !server.is_null() {
        // SAFETY: it was made by `ropewalk_region_server_new`, and the caller gives it up.
        let server = unsafe { Box::from_raw(server) };
        server.maker.release(server);
    }
}

/// The address of this number that is listened on, with its port; NULL where there are fewer. To be released with
/// [`ropewalk_string_free`](crate::ropewalk_string_free).
///
/// # Safety
/// `server` is NULL or was returned by [`ropewalk_region_server_new`] and is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_server_address(
    server: *const ropewalk_region_server,
    number: usize,
) -> *mut c_char {
    // SAFETY: as this function demands.
    let server = unsafe { server.as_ref() };
    let address = server.and_then(|all| all.server.addresses().get(number).copied());
    address.map_or(std::ptr::null_mut(), |address| {
        c_string(&address.to_string()).into_raw()
    })
}

/// Serves ranges of a region. All its nodes state the same size and rule. Memory is lent until [`ropewalk_region_server_withdraw`] has returned, or the server
/// is released: the caller may read and write it meanwhile where no origin does.
///
/// * `rule`: a value of `ropewalk_rule`.
///
/// # Safety
/// As [`ropewalk_region_server_address`]; `name` ends with a zero byte; `exposed` has `count` entries, whose memory is there, and whose files are NULL or end with a zero
/// byte; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_server_serve(
    server: *mut ropewalk_region_server,
    name: *const c_char,
    size: u64,
    rule: c_int,
    exposed: *const ropewalk_exposed,
    count: usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let server = server.as_mut();
            let server = server.ok_or(Failure::Misuse("the server is NULL"))?;
            server.maker.check()?;
            let name = text(name)?;
            memory(exposed.cast(), count)?;
            let rule = match rule {
                rule if rule == ropewalk_rule::ROPEWALK_READ_ONLY as c_int => Rule::ReadOnly,
                rule if rule == ropewalk_rule::ROPEWALK_ALL as c_int => Rule::All,
                rule if rule == ropewalk_rule::ROPEWALK_OWNER as c_int => Rule::Owner,
                _ => {
                    return Err(Failure::Misuse(
                        "the rule of a region is none; write a value of ropewalk_rule",
                    ));
                }
            };
            let (mut all, mut lent) = (Vec::new(), Vec::new());
            for at in 0..count {
                let one = &*exposed.add(at);
                let range = one.range.start..one.range.end;
                let made = if one.memory.is_null() {
                    Exposed::file(range, text(one.file)?, one.file_offset)
                } else {
                    let len = range.end.checked_sub(range.start);
                    let len = len.and_then(|len| usize::try_from(len).ok());
                    let len = len.ok_or(Failure::Misuse("a range ends before it starts"))?;
                    let buffer = Buffer::lent_writable(one.memory.cast(), len);
                    lent.push(buffer.clone());
                    Exposed::memory(range.start, buffer)
                };
                all.push(if one.owned { made.owned() } else { made });
            }
            server.server.serve(name, size, rule, all)?;
            server.lent.insert(name.to_owned(), lent);
            Ok(ROPEWALK_OK)
        })
    }
}

/// Serves a region no longer, and syncs its files; its memory is the caller's again.
///
/// # Safety
/// As [`ropewalk_region_server_serve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_server_withdraw(
    server: *mut ropewalk_region_server,
    name: *const c_char,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let server = server.as_mut();
            let server = server.ok_or(Failure::Misuse("the server is NULL"))?;
            server.maker.check()?;
            let name = text(name)?;
            let withdrawn = server.server.withdraw(name);
            for buffer in server.lent.remove(name).into_iter().flatten() {
                drop(buffer.take_back());
            }
            match withdrawn? {
                true => Ok(ROPEWALK_OK),
                false => Err(Failure::Misuse("no region of this name is served")),
            }
        })
    }
}

/// Connects to the nodes of a region.
///
/// * `nodes`: one text for each node: its address and port, or those of several interfaces with commas between.
/// * `token_file`: as for [`ropewalk_region_server_new`].
///
/// # Safety
/// `nodes` has `count` texts that end with a zero byte, as `name` does; `token_file` is NULL or ends with one; `region` is NULL or a place for a pointer;
/// `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_connect(
    name: *const c_char,
    nodes: *const *const c_char,
    count: usize,
    token_file: *const c_char,
    region: *mut *mut ropewalk_region,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            if region.is_null() {
                return Err(Failure::Misuse("the place for the region is NULL"));
            }
            let (_, options): (_, RegionOptions) = arguments(nodes, 0, token_file)?;
            let parse = |node: &str| -> Result<Vec<SocketAddr>, Failure> {
                let bad = "a node is no list of addresses; write 192.168.1.5:7450,10.0.0.5:7450";
                let all = node.split(',').map(str::parse);
                all.collect::<Result<_, _>>()
                    .map_err(|_| Failure::Misuse(bad))
            };
            let nodes: Vec<Vec<SocketAddr>> = texts(nodes, count)?
                .into_iter()
                .map(parse)
                .collect::<Result<_, _>>()?;
            let made = ropewalk_region {
                region: Region::connect(text(name)?, &nodes, &options)?,
            };
            *region = Box::into_raw(Box::new(made));
            Ok(ROPEWALK_OK)
        })
    }
}

/// Releases a region. Requests under way are released before. NULL is permitted.
///
/// # Safety
/// `region` is NULL or was returned by [`ropewalk_region_connect`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_free(region: *mut ropewalk_region) {
    let _shield = Shield::new();
    if !region.is_null() {
        // SAFETY: it was made by `ropewalk_region_connect`, and the caller gives it up.
        drop(unsafe { Box::from_raw(region) });
    }
}

/// Bytes of a region; 0 for NULL.
///
/// # Safety
/// `region` is NULL or was returned by [`ropewalk_region_connect`] and is not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_size(region: *const ropewalk_region) -> u64 {
    // SAFETY: as this function demands.
    unsafe { self::region(region) }.map_or(0, Region::size)
}

/// Reads `len` bytes from an offset on, from any node that holds them.
///
/// # Safety
/// As [`ropewalk_region_size`]; `into` has `len` bytes; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_get(
    region: *const ropewalk_region,
    offset: u64,
    into: *mut c_void,
    len: usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let region = self::region(region)?;
            memory(into, len)?;
            if len > 0 {
                let into = std::slice::from_raw_parts_mut(into.cast(), len);
                region.get_into(offset, into)?;
            }
            Ok(ROPEWALK_OK)
        })
    }
}

/// Begins to read ranges, whose bytes are one after the other in `into` when [`ropewalk_request_wait`] has returned. Until then the memory is not touched.
///
/// # Safety
/// As [`ropewalk_region_size`]; `ranges` has `count` entries; `into` has as many bytes as they have together, until the request is released; `request` is NULL or a place for a
/// pointer; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_get_start(
    region: *const ropewalk_region,
    ranges: *const ropewalk_range,
    count: usize,
    into: *mut c_void,
    request: *mut *mut ropewalk_request,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let region = self::region(region)?;
            memory(ranges.cast(), count)?;
            if request.is_null() {
                return Err(Failure::Misuse("the place for the request is NULL"));
            }
            let all = (0..count).map(|at| *ranges.add(at));
            let all: Vec<_> = all.map(|range| range.start..range.end).collect();
            memory(into, all.iter().filter(|range| !range.is_empty()).count())?;
            let get = region.get_start(&all)?;
            let made = ropewalk_request::new(Request::Get {
                get,
                memory: into.cast(),
            });
            *request = Box::into_raw(Box::new(made));
            Ok(ROPEWALK_OK)
        })
    }
}

/// Writes `len` bytes from an offset on, and returns when the nodes that the region's rule names have them.
///
/// # Safety
/// As [`ropewalk_region_size`]; `from` has `len` bytes; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_put(
    region: *const ropewalk_region,
    offset: u64,
    from: *const c_void,
    len: usize,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let region = self::region(region)?;
            memory(from, len)?;
            if len > 0 {
                region.put(offset, std::slice::from_raw_parts(from.cast(), len))?;
            }
            Ok(ROPEWALK_OK)
        })
    }
}

/// Begins to write bytes, which are copied: the memory may be used again at once.
///
/// * `request`: NULL where [`ropewalk_region_flush`] is to wait for it, and to have its error.
///
/// # Safety
/// As [`ropewalk_region_put`]; `request` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_put_start(
    region: *const ropewalk_region,
    offset: u64,
    from: *const c_void,
    len: usize,
    request: *mut *mut ropewalk_request,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let region = self::region(region)?;
            memory(from, len)?;
            end(offset, len)?;
            let bytes = match len {
                0 => Vec::new(),
                _ => std::slice::from_raw_parts(from.cast::<u8>(), len).to_vec(),
            };
            let put = region.put_start(offset, bytes)?;
            if !request.is_null() {
                let made = ropewalk_request::new(Request::Put(put));
                *request = Box::into_raw(Box::new(made));
            }
            Ok(ROPEWALK_OK)
        })
    }
}

/// Waits until a request is complete, at most so many milliseconds; a negative number for no bound but the region's. `ROPEWALK_UNDER_WAY`: it goes on.
///
/// # Safety
/// `request` is NULL or was returned by [`ropewalk_region_get_start`] or [`ropewalk_region_put_start`] and is not released; `error` is NULL or a place for
/// a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_request_wait(
    request: *mut ropewalk_request,
    milliseconds: c_int,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let request = request.as_mut();
            let request = request.ok_or(Failure::Misuse("the request is NULL"))?;
            let most = bound(milliseconds);
            let is_complete = match &mut request.request {
                Request::Put(put) => put.wait_for(most)?,
                Request::Get { get, memory } => match get.wait_for(most)? {
                    Some(bytes) => {
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), *memory, bytes.len());
                        true
                    }
                    None => false,
                },
            };
            Ok(if is_complete {
                ROPEWALK_OK
            } else {
                ROPEWALK_UNDER_WAY
            })
        })
    }
}

/// Releases a request: a get is given up, a put goes on. NULL is permitted. In a child of the process that made it a get goes on, too.
///
/// # Safety
/// As [`ropewalk_request_wait`]; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_request_free(request: *mut ropewalk_request) {
    let _shield = Shield::new();
    if !request.is_null() {
        // SAFETY: it was made by a call of this library, and the caller gives it up.
        let request = unsafe { Box::from_raw(request) };
        request.maker.release(request);
    }
}

/// What is begun after it leaves when all puts and notifications begun before are complete. Does not wait. NULL is permitted.
///
/// # Safety
/// As [`ropewalk_region_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_fence(region: *const ropewalk_region) {
    // SAFETY: as this function demands.
    if let Ok(region) = unsafe { self::region(region) } {
        region.fence();
    }
}

/// Waits until all puts and notifications that were begun are complete.
///
/// # Safety
/// As [`ropewalk_region_size`]; `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_flush(
    region: *const ropewalk_region,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            self::region(region)?.flush()?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// Gives each byte of a range a value, unless it has a greater one, after all puts that were begun before.
///
/// # Safety
/// As [`ropewalk_region_flush`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_notify(
    region: *const ropewalk_region,
    range: ropewalk_range,
    value: u64,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            self::region(region)?.notify(range.start..range.end, value)?;
            Ok(ROPEWALK_OK)
        })
    }
}

/// Waits until some byte of a range has at least this value, at most so many milliseconds; a negative number for no bound. `ROPEWALK_UNDER_WAY`: none has.
///
/// * `value`: where the value that was found is put; may be NULL.
///
/// # Safety
/// As [`ropewalk_region_flush`]; `value` is NULL or a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ropewalk_region_wait(
    region: *const ropewalk_region,
    range: ropewalk_range,
    at_least: u64,
    milliseconds: c_int,
    value: *mut u64,
    error: *mut *mut ropewalk_error,
) -> ropewalk_result {
    // SAFETY: as this function demands.
    unsafe {
        guard(error, || {
            let region = self::region(region)?;
            let found = region.wait(range.start..range.end, at_least, bound(milliseconds))?;
            if let (Some(found), false) = (found, value.is_null()) {
                *value = found;
            }
            Ok(if found.is_some() {
                ROPEWALK_OK
            } else {
                ROPEWALK_UNDER_WAY
            })
        })
    }
}
