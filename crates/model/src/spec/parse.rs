//! Reads the rows of a specification file, gathering errors as it goes.

use std::ops::Range as Span;

use crate::link::Link;
use crate::range::Range;
use crate::units::{ByteRate, Bytes};

use super::error::ERRORS_MAX;
use super::lex::{Word, words};
use super::links::{self, LinkSpans};
use super::validate;
use super::{Hints, HostPort, Role, Row, SpecError, SpecErrors, TransferSpec, Uri};

/// Gathers errors and knows where the lines of the file begin.
pub(super) struct Errors<'t> {
    text: &'t str,
    line_starts: Vec<usize>,
    found: Vec<SpecError>,
}

/// An error before it knows its line.
pub(super) struct Fault {
    pub span: Span<usize>,
    pub message: String,
    pub label: String,
    pub advice: String,
    pub related: Option<(Span<usize>, String)>,
}

impl Fault {
    pub(super) fn new(span: Span<usize>, message: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
            label: String::new(),
            advice: String::new(),
            related: None,
        }
    }

    pub(super) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    pub(super) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    pub(super) fn related(mut self, span: Span<usize>, label: impl Into<String>) -> Self {
        self.related = Some((span, label.into()));
        self
    }

    /// An error whose message is "what is wrong; what to do", as the other modules write them.
    pub(super) fn from_sentence(span: Span<usize>, sentence: &str) -> Self {
        let (message, advice) = sentence.rsplit_once("; ").unwrap_or((sentence, ""));
        Self::new(span, message).advice(advice)
    }
}

impl<'t> Errors<'t> {
    fn new(text: &'t str) -> Self {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            text,
            line_starts: std::iter::once(0).chain(breaks).collect(),
            found: Vec::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    pub(super) fn push(&mut self, fault: Fault) {
        let at = fault.span.start.min(self.text.len());
        let line = self
            .line_starts
            .partition_point(|start| *start <= at)
            .max(1);
        let start = self.line_starts[line - 1];
        let column = self
            .text
            .get(start..at)
            .map_or(0, |before| before.chars().count());
        self.found.push(SpecError {
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(column + 1).unwrap_or(u32::MAX),
            message: fault.message,
            label: fault.label,
            advice: fault.advice,
            span: fault.span,
            related: fault.related,
        });
    }
}

/// Where the parts of a row stand, for errors found later.
pub(super) struct RowSpans {
    pub all: Span<usize>,
    pub uri: Span<usize>,
    pub file_offset: Span<usize>,
    pub range: Span<usize>,
    pub hints: Vec<Span<usize>>,
}

/// What a text is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// A whole transfer: nodes have data, nodes want it.
    Transfer,
    /// Rows that are added to a transfer.
    Added,
}

pub(super) fn parse(text: &str, scope: Scope) -> Result<TransferSpec, SpecErrors> {
    let mut parser = Parser {
        scope,
        errors: Errors::new(text),
        spec: TransferSpec::default(),
        spans: Vec::new(),
        link_spans: Vec::new(),
        linked: 0,
        id_at: None,
        master_at: None,
    };
    let mut start = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let content = line.trim_end_matches(['\n', '\r']);
        // A byte order mark, as some editors leave it, is not part of the first word.
        let mark = if index == 0 && content.starts_with('\u{feff}') {
            3
        } else {
            0
        };
        let line_number = u32::try_from(index + 1).unwrap_or(u32::MAX);
        parser.line(&content[mark..], start + mark, line_number);
        start += line.len();
    }
    let readable = parser.errors.found.is_empty();
    validate::check(
        &parser.spec,
        &parser.spans,
        &mut parser.errors,
        scope,
        readable,
    );
    links::check(
        &parser.spec,
        &parser.link_spans,
        &mut parser.errors,
        readable,
    );
    if parser.errors.found.is_empty() {
        return Ok(parser.spec);
    }
    let mut errors = parser.errors.found;
    let more = errors.len().saturating_sub(ERRORS_MAX);
    errors.truncate(ERRORS_MAX);
    Err(SpecErrors { errors, more })
}

struct Parser<'t> {
    scope: Scope,
    errors: Errors<'t>,
    spec: TransferSpec,
    spans: Vec<RowSpans>,
    link_spans: Vec<LinkSpans>,
    // Nodes and hosts that caps and trunks have named so far.
    linked: usize,
    id_at: Option<Span<usize>>,
    master_at: Option<Span<usize>>,
}

impl Parser<'_> {
    fn line(&mut self, line: &str, start: usize, number: u32) {
        let words = match words(line, start) {
            Ok(words) => words,
            Err(open) => {
                let fault = Fault::new(open.span, "quote is not closed").label("opens here");
                let fault = fault.advice("close it with \" on the same line");
                return self.errors.push(fault);
            }
        };
        let Some((keyword, rest)) = words.split_first() else {
            return;
        };
        match keyword.text.as_str() {
            "cap" | "trunk" if self.scope == Scope::Added => {
                let message = "caps and trunks belong to the transfer that runs";
                let fault = Fault::new(keyword.span.clone(), message).label("not here");
                self.errors.push(fault.advice(
                    "take the row out; a joining node uses the caps and trunks declared for its host without a port",
                ));
            }
            "id" | "master" if self.scope == Scope::Added => {
                let message = match keyword.text.as_str() {
                    "id" => "the running transfer already has an id",
                    _ => "the running transfer already has a master",
                };
                let fault = Fault::new(keyword.span.clone(), message).label("not here");
                let fault = fault
                    .advice("take the row out: nodes that join have rows writer or reader only");
                self.errors.push(fault);
            }
            "id" => self.id(keyword, rest),
            "master" => self.master(keyword, rest),
            "writer" => self.row(Role::Writer, keyword, rest, number),
            "reader" => self.row(Role::Reader, keyword, rest, number),
            "cap" | "trunk" => self.link(keyword, rest),
            other => {
                let message = format!("\"{other}\" is not a kind of row");
                let fault = Fault::new(keyword.span.clone(), message).label("unknown");
                let fault =
                    fault.advice("rows begin with id, master, writer, reader, cap or trunk");
                self.errors.push(fault);
            }
        }
    }

    fn id(&mut self, keyword: &Word, rest: &[Word]) {
        let [label] = rest else {
            let span = rest
                .get(1)
                .map_or(keyword.span.clone(), |word| word.span.clone());
            let fault = Fault::new(span, "an id row has one label");
            let fault = fault.advice("put the label in quotes: id \"My Data File\"");
            return self.errors.push(fault);
        };
        if let Some(first) = &self.id_at {
            let fault = Fault::new(keyword.span.clone(), "a second id").label("again here");
            let fault = fault
                .related(first.clone(), "first here")
                .advice("keep one of them");
            return self.errors.push(fault);
        }
        self.id_at = Some(keyword.span.clone());
        self.spec.id = Some(label.text.clone());
    }

    fn master(&mut self, keyword: &Word, rest: &[Word]) {
        let [address] = rest else {
            let span = rest
                .get(1)
                .map_or(keyword.span.clone(), |word| word.span.clone());
            let fault = Fault::new(span, "a master row has one address");
            return self.errors.push(fault.advice("write master host:port"));
        };
        if let Some(first) = &self.master_at {
            let fault = Fault::new(keyword.span.clone(), "a second master").label("again here");
            let fault = fault
                .related(first.clone(), "first here")
                .advice("keep one of them");
            return self.errors.push(fault);
        }
        self.master_at = Some(keyword.span.clone());
        self.spec.master = self.read(address);
    }

    /// Reads one word by its type's own parser; an error becomes a fault at the word.
    fn read<T: std::str::FromStr<Err: std::fmt::Display>>(&mut self, word: &Word) -> Option<T> {
        match word.text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                let error: T::Err = error;
                let fault = Fault::from_sentence(word.span.clone(), &error.to_string());
                self.errors.push(fault);
                None
            }
        }
    }

    fn row(&mut self, role: Role, keyword: &Word, rest: &[Word], line: u32) {
        let [address, uri, offset, range, hints @ ..] = rest else {
            let columns = ["Host:Port", "data URI", "offset in file", "start-end range"];
            let missing = columns.get(rest.len()).copied().unwrap_or("range");
            let last = rest.last().unwrap_or(keyword);
            let fault = Fault::new(last.span.clone(), format!("{role} row without {missing}"));
            let fault = fault
                .label(format!("{missing} expected after this"))
                .advice(format!(
                    "write {role} host:port \"file:///path\" OFFSET START-END"
                ));
            return self.errors.push(fault);
        };
        let host_port = self.read::<HostPort>(address);
        let object = self.read::<Uri>(uri);
        let file_offset = self.offset(offset);
        let bytes = self.range(range);
        let hints_read = self.hints(role, hints);
        let (Some(host_port), Some(uri_read), Some(file_offset), Some(bytes), Some(hints_read)) =
            (host_port, object, file_offset, bytes, hints_read)
        else {
            return;
        };
        let last = hints.last().unwrap_or(range);
        self.spans.push(RowSpans {
            all: keyword.span.start..last.span.end,
            uri: uri.span.clone(),
            file_offset: offset.span.clone(),
            range: range.span.clone(),
            hints: hints.iter().map(|word| word.span.clone()).collect(),
        });
        self.spec.rows.push(Row {
            role,
            host_port,
            uri: uri_read,
            file_offset,
            range: bytes,
            hints: hints_read,
            line,
        });
    }

    fn link(&mut self, keyword: &Word, rest: &[Word]) {
        let (name, rate, from, to) = match links::parts(keyword, rest) {
            Ok(parts) => parts,
            Err(fault) => return self.errors.push(*fault),
        };
        let errors_before = self.errors.found.len();
        let read = self.read::<ByteRate>(rate);
        let zero = read.and_then(|read| links::check_rate(read, rate));
        if self.linked > links::NODES_MAX {
            let message = format!(
                "caps and trunks that name more than {} nodes",
                links::NODES_MAX
            );
            let fault = Fault::new(keyword.span.clone(), message);
            let advice = "name hosts without ports: each is all nodes on it";
            return self.errors.push(fault.advice(advice));
        }
        let sets = [links::node_set(from), links::node_set(to)];
        let named = sets.iter().flatten();
        self.linked += named
            .map(|set| set.nodes.len() + set.hosts.len())
            .sum::<usize>();
        if let Some(name) = name.filter(|name| name.text.is_empty()) {
            let fault = Fault::new(name.span.clone(), "the name is empty");
            self.errors.push(fault.advice(links::TRUNK_FORM));
        }
        let trunk = name.map(|name| name.text.clone());
        let [from_set, to_set] = sets.map(|set| set.map_err(|fault| self.errors.push(*fault)));
        if let Some(fault) = zero {
            self.errors.push(fault);
        }
        let (Some(rate_read), Ok(from_set), Ok(to_set)) = (read, from_set, to_set) else {
            return;
        };
        if self.errors.found.len() > errors_before {
            return;
        }
        let last = rest.last().unwrap_or(keyword);
        self.link_spans.push(LinkSpans {
            all: keyword.span.start..last.span.end,
            name: name.map_or(keyword.span.clone(), |name| name.span.clone()),
            from: from.span.clone(),
            to: to.span.clone(),
        });
        self.spec.links.push(Link {
            trunk,
            rate: rate_read,
            from: from_set,
            to: to_set,
        });
    }

    fn offset(&mut self, word: &Word) -> Option<u64> {
        if let Some(dash) = word.text.find('-')
            && dash > 0
        {
            let fault = Fault::new(
                word.span.clone(),
                "this is a range, not an offset in the file",
            );
            let advice =
                "the column before the range says where in the file the bytes lie, often 0";
            self.errors.push(fault.advice(advice));
            return None;
        }
        self.read::<Bytes>(word).map(|bytes| bytes.0)
    }

    fn range(&mut self, word: &Word) -> Option<Range> {
        let fault = |message: String, advice: &str| {
            Some(Fault::new(word.span.clone(), message).advice(advice))
        };
        let number = |text: &str| text.parse::<u64>().ok().filter(|_| !text.starts_with('+'));
        let text = word.text.as_str();
        let problem = if let Some((first, length)) = text.split_once('+') {
            let digit = first.starts_with(|letter: char| letter.is_ascii_digit());
            let first_byte = first.parse::<Bytes>().ok().filter(|_| digit);
            match (first_byte.map(|bytes| bytes.0), length.parse::<Bytes>()) {
                (Some(first), Ok(length)) => match Range::from_length(first, length.0) {
                    Some(range) => return Some(range),
                    None => fault(
                        format!("\"{text}\" ends beyond 2^64"),
                        "use a smaller start or length",
                    ),
                },
                (None, _) => fault(
                    format!("\"{first}\" is not the offset of a byte"),
                    "write START+LENGTH, as in 4096+1GiB or 1GiB+1GiB",
                ),
                (_, Err(error)) => {
                    Some(Fault::from_sentence(word.span.clone(), &error.to_string()))
                }
            }
        } else if let Some((first, last)) = text.split_once('-') {
            match (number(first), number(last)) {
                (Some(first), Some(last)) => match Range::from_inclusive(first, last) {
                    Some(range) => return Some(range),
                    None if last < first => fault(
                        format!("range {first}-{last} ends before it starts"),
                        "write the first byte, then the last; both are included",
                    ),
                    None => fault(format!("\"{text}\" ends beyond 2^64"), "use a smaller end"),
                },
                _ => fault(
                    format!("\"{text}\" is not a range of bytes"),
                    "write START-END in bytes, both included, or START+LENGTH",
                ),
            }
        } else {
            fault(
                format!("\"{text}\" is not a range"),
                "write START-END, both included, or START+LENGTH",
            )
        };
        if let Some(fault) = problem {
            self.errors.push(fault);
        }
        None
    }

    fn hints(&mut self, role: Role, words: &[Word]) -> Option<Hints> {
        let mut hints = Hints::default();
        let errors_before = self.errors.found.len();
        for word in words {
            let Some((key, value)) = word.text.split_once('=') else {
                let fault = Fault::new(word.span.clone(), "field after the range is not key=value");
                let advice = "known are up=RATE, down=RATE, dest=NAME and interface=NAME; comments begin with #";
                self.errors.push(fault.advice(advice));
                continue;
            };
            let value = Word {
                text: value.to_owned(),
                ..word.clone()
            };
            let twice = match key {
                "down" if role == Role::Writer => {
                    let fault = Fault::new(word.span.clone(), "a writer receives nothing");
                    self.errors.push(fault.advice(
                        "up=RATE is the speed at which it sends; down= belongs on reader rows",
                    ));
                    false
                }
                "up" => {
                    let rate = self.node_rate(&value);
                    std::mem::replace(&mut hints.up, rate).is_some()
                }
                "down" => {
                    let rate = self.node_rate(&value);
                    std::mem::replace(&mut hints.down, rate).is_some()
                }
                "dest" if role == Role::Writer => {
                    let fault = Fault::new(word.span.clone(), "a writer has no destination");
                    self.errors
                        .push(fault.advice("dest= belongs on reader rows"));
                    false
                }
                "dest" => hints.destination.replace(self.name(&value)).is_some(),
                "interface" => {
                    let name = self.name(&value);
                    hints.interfaces.push(name);
                    false
                }
                _ => {
                    let fault =
                        Fault::new(word.span.clone(), format!("\"{key}\" is not a known key"));
                    let advice = "known are up=RATE, down=RATE, dest=NAME and interface=NAME";
                    self.errors.push(fault.advice(advice));
                    false
                }
            };
            if twice {
                let fault = Fault::new(word.span.clone(), format!("\"{key}\" twice in one row"));
                self.errors.push(fault.advice("keep one of them"));
            }
        }
        (self.errors.found.len() == errors_before).then_some(hints)
    }

    fn node_rate(&mut self, value: &Word) -> Option<ByteRate> {
        let rate = self.read::<ByteRate>(value)?;
        if rate.0 == 0 {
            let fault = Fault::new(value.span.clone(), "a node of rate 0 moves nothing");
            let fault = fault.advice("write a rate above 0, or leave it out where it is not known");
            self.errors.push(fault);
        }
        Some(rate)
    }

    fn name(&mut self, value: &Word) -> String {
        if value.text.is_empty() {
            let fault = Fault::new(value.span.clone(), "the name is empty");
            self.errors.push(fault.advice("write a name after the ="));
        }
        value.text.clone()
    }
}
