//! The first bytes of a link's connection: the preface of every Ropewalk connection, its answer, a proof of both.
//!
//! ```text
//!   connecting end                              listening end
//!   preface: session, rail, number, nonce ────▶ MAC right?
//!   MAC right under what was asked?       ◀──── answer: a nonce of its own, window
//!   proof of preface and answer (32 bytes) ───▶ right? session known, or a new one
//! ```
//!
//! The keys of answer and proof are made of the token and of all that was said before, so that each end knows that the
//! other has the token now: what was recorded opens nothing. Bytes 72 to 88 of a preface hold: rail, rails, two zeros, the
//! number of the link (4 bytes), the window of its writer (8 bytes), little endian. Of two links of a rail the one
//! with the higher number counts.
//!
//! Where records are sealed, the nonces are X25519 keys, and the keys of the records are derived from their secret and the
//! token: a later owner of the token cannot read what was recorded, and a peer without it cannot relay the connection.

use ropewalk_lane::exchange::{Exchange, is_equal, transcript};
use ropewalk_lane::preface::{self, Kind, MacKey, PREFACE_LEN, Preface};
use ropewalk_lane::seal::{PairSecret, derive, wipe};
use ropewalk_proto::message::RAILS_MAX;

/// Bytes of the proof that the connecting end heard the answer.
pub(crate) const PROOF_LEN: usize = 32;

/// Flag: this is the listening end's answer.
const ANSWER: u8 = 1;
/// Flag: frames are not checked.
const UNCHECKED: u8 = 2;
/// Flag: may begin a session; else the connection joins one.
const HELLO: u8 = 4;
/// Flag of an answer: there is no such session any more.
const GONE: u8 = 8;
/// Flag: records are sealed.
const SEALED: u8 = 16;
/// Flag of an answer: only sealed connections are taken here.
const MUST_SEAL: u8 = 32;

/// What proves that a peer knows the token.
pub(crate) struct Proof {
    key: MacKey,
    key_id: [u8; 16],
    secret: PairSecret,
}

impl Proof {
    pub(crate) fn new(token: Option<&[u8; 32]>) -> Self {
        match token {
            Some(token) => Self {
                key: MacKey::new(token),
                key_id: preface::key_id(token),
                secret: PairSecret(*token),
            },
            // Keeps strangers apart by chance only, which is what no token means.
            None => Self {
                key: MacKey::new(b"ropewalk message socket without a token"),
                key_id: [0; 16],
                secret: PairSecret([0; 32]),
            },
        }
    }

    /// Key of the answer to this preface.
    fn answer_key(&self, preface: &[u8; PREFACE_LEN]) -> MacKey {
        let context = transcript(&[preface]);
        let mut secret = derive(&self.secret.0, "ropewalk message answer", &context);
        let key = MacKey::new(&secret);
        wipe(&mut secret);
        key
    }

    fn last(&self, said: &[u8; 32]) -> [u8; PROOF_LEN] {
        derive(&self.secret.0, "ropewalk message proof", said)
    }

    /// Keys of the records, if there are to be any.
    fn keys(&self, own: &Exchange, peer: &[u8; 32], said: &[u8; 32]) -> Option<[PairSecret; 2]> {
        let mut agreed = own.agree(peer)?;
        let mut secret = [0; 64];
        let (shared, token) = secret.split_at_mut(32);
        shared.copy_from_slice(&agreed);
        token.copy_from_slice(&self.secret.0);
        let toward = |label| PairSecret(derive(&secret, label, said));
        let keys = [
            toward("ropewalk message toward the listening end"),
            toward("ropewalk message toward the connecting end"),
        ];
        wipe(&mut agreed);
        wipe(&mut secret);
        Some(keys)
    }
}

/// Secrets of a link's records.
pub(crate) struct LinkKeys {
    pub out: PairSecret,
    pub incoming: PairSecret,
}

/// What a connecting end says of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Introduction {
    pub session: [u8; 16],
    pub hello: bool,
    pub check: bool,
    pub sealed: bool,
    pub rail: usize,
    pub rails: usize,
    pub number: u32,
    pub window: u64,
}

/// How a listening end answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With its window.
    Welcome(u64),
    /// The session is over.
    Gone,
    /// Only sealed connections are taken.
    MustSeal,
}

/// A listening end that has answered and waits for the proof.
pub(crate) struct Answered {
    pub bytes: [u8; PREFACE_LEN],
    proof: [u8; PROOF_LEN],
    keys: Option<LinkKeys>,
}

/// A connecting end that waits for the answer.
pub(crate) struct Asked {
    pub bytes: [u8; PREFACE_LEN],
    exchange: Option<Exchange>,
}

/// Why an answer is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unproven {
    Token,
    Gone,
    MustSeal,
}

/// What a connecting end knows after a welcome.
pub(crate) struct Welcomed {
    pub proof: [u8; PROOF_LEN],
    pub window: u64,
    pub keys: Option<LinkKeys>,
}

impl Introduction {
    /// Reads and verifies the preface of a connecting end; `None` from a stranger.
    pub(crate) fn read(bytes: &[u8; PREFACE_LEN], proof: &Proof) -> Option<Self> {
        let head = Preface::parse(bytes).ok()?;
        let known = HELLO | UNCHECKED | SEALED;
        let ours =
            head.kind == Kind::Message && head.key_id == proof.key_id && head.flags & !known == 0;
        if !ours || !Preface::verify(bytes, &proof.key) {
            return None;
        }
        let own = Self {
            session: head.transfer_id,
            hello: head.flags & HELLO != 0,
            check: head.flags & UNCHECKED == 0,
            sealed: head.flags & SEALED != 0,
            rail: usize::from(head.extra[0]),
            rails: usize::from(head.extra[1]),
            number: u32::from_le_bytes(std::array::from_fn(|at| head.extra[4 + at])),
            window: u64::from_le_bytes(std::array::from_fn(|at| head.extra[8 + at])),
        };
        (own.rail < own.rails && own.rails <= RAILS_MAX).then_some(own)
    }

    fn head(&self, flags: u8, window: u64, nonce: [u8; 32], key_id: [u8; 16]) -> Preface {
        let mut extra = [0; 16];
        // Both are at most RAILS_MAX.
        (extra[0], extra[1]) = (self.rail as u8, self.rails as u8);
        extra[4..8].copy_from_slice(&self.number.to_le_bytes());
        extra[8..].copy_from_slice(&window.to_le_bytes());
        Preface {
            kind: Kind::Message,
            flags,
            key_id,
            transfer_id: self.session,
            nonce,
            extra,
        }
    }

    /// Asks, as the connecting end.
    pub(crate) fn ask(&self, proof: &Proof) -> Asked {
        let mut flags = if self.hello { HELLO } else { 0 };
        flags |= if self.check { 0 } else { UNCHECKED };
        flags |= if self.sealed { SEALED } else { 0 };
        let (exchange, nonce) = nonce(self.sealed);
        let head = self.head(flags, self.window, nonce, proof.key_id);
        Asked {
            bytes: head.encode(&proof.key),
            exchange,
        }
    }

    /// Answers, as the listening end; `None` when the other's key is none.
    pub(crate) fn answer(
        &self,
        asked: &[u8; PREFACE_LEN],
        answer: Answer,
        proof: &Proof,
    ) -> Option<Answered> {
        let (flags, window) = match answer {
            Answer::Welcome(window) => (ANSWER, window),
            Answer::Gone => (ANSWER | GONE, 0),
            Answer::MustSeal => (ANSWER | MUST_SEAL, 0),
        };
        let (exchange, nonce) = nonce(self.sealed);
        let head = self.head(flags, window, nonce, proof.key_id);
        let bytes = head.encode(&proof.answer_key(asked));
        let said = transcript(&[asked, &bytes]);
        let keys = match exchange {
            Some(own) => {
                let peer = Preface::parse(asked).ok()?.nonce;
                let [incoming, out] = proof.keys(&own, &peer, &said)?;
                Some(LinkKeys { out, incoming })
            }
            None => None,
        };
        Some(Answered {
            bytes,
            proof: proof.last(&said),
            keys,
        })
    }
}

impl Answered {
    /// The keys of the records, if the other end proves that it heard the answer.
    pub(crate) fn verify(self, proof: &[u8; PROOF_LEN]) -> Option<Option<LinkKeys>> {
        is_equal(&self.proof, proof).then_some(self.keys)
    }
}

impl Asked {
    /// Reads the answer, as the connecting end.
    pub(crate) fn hear(
        &self,
        answer: &[u8; PREFACE_LEN],
        proof: &Proof,
    ) -> Result<Welcomed, Unproven> {
        let head = Preface::parse(answer).map_err(|_| Unproven::Token)?;
        let right = head.kind == Kind::Message && head.flags & ANSWER != 0;
        if !right || !Preface::verify(answer, &proof.answer_key(&self.bytes)) {
            return Err(Unproven::Token);
        }
        if head.flags & GONE != 0 {
            return Err(Unproven::Gone);
        }
        if head.flags & MUST_SEAL != 0 {
            return Err(Unproven::MustSeal);
        }
        let said = transcript(&[&self.bytes, answer]);
        let keys = match &self.exchange {
            Some(own) => {
                let keys = proof.keys(own, &head.nonce, &said);
                let [out, incoming] = keys.ok_or(Unproven::Token)?;
                Some(LinkKeys { out, incoming })
            }
            None => None,
        };
        Ok(Welcomed {
            proof: proof.last(&said),
            window: u64::from_le_bytes(std::array::from_fn(|at| head.extra[8 + at])),
            keys,
        })
    }
}

fn nonce(sealed: bool) -> (Option<Exchange>, [u8; 32]) {
    if sealed {
        let exchange = Exchange::new();
        let public = exchange.public();
        return (Some(exchange), public);
    }
    (None, preface::random_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(sealed: bool) -> Introduction {
        Introduction {
            session: [3; 16],
            hello: true,
            check: false,
            sealed,
            rail: 1,
            rails: 2,
            number: 77,
            window: 1 << 40,
        }
    }

    /// What one end says the other reads, under the same token only; an answer is no introduction.
    #[test]
    fn introductions_need_the_token() {
        let (own, other) = (Proof::new(Some(&[1; 32])), Proof::new(Some(&[2; 32])));
        let asked = said(true).ask(&own);
        let read = Introduction::read(&asked.bytes, &own).unwrap();
        assert_eq!(
            (read.rail, read.rails, read.number, read.window),
            (1, 2, 77, 1 << 40)
        );
        assert!(read.hello && !read.check && read.sealed && read.session == [3; 16]);
        assert!(Introduction::read(&asked.bytes, &other).is_none());
        assert!(Introduction::read(&asked.bytes, &Proof::new(None)).is_none());
        let answered = read.answer(&asked.bytes, Answer::Welcome(1), &own).unwrap();
        assert!(Introduction::read(&answered.bytes, &own).is_none());
        let far = Introduction {
            rail: 2,
            ..said(false)
        };
        assert!(Introduction::read(&far.ask(&own).bytes, &own).is_none());
    }

    /// Both ends end up with the same keys, crossed, or with none.
    #[test]
    fn ends_agree_on_keys() {
        let own = Proof::new(Some(&[1; 32]));
        for sealed in [true, false] {
            let asked = said(sealed).ask(&own);
            let answered = said(sealed)
                .answer(&asked.bytes, Answer::Welcome(5), &own)
                .unwrap();
            let welcomed = asked.hear(&answered.bytes, &own).ok().unwrap();
            assert_eq!(welcomed.window, 5);
            let theirs = answered.verify(&welcomed.proof).unwrap();
            assert_eq!(theirs.is_some(), sealed);
            if let (Some(near), Some(far)) = (welcomed.keys, theirs) {
                assert!(near.out.0 == far.incoming.0 && near.incoming.0 == far.out.0);
                assert_ne!(near.out.0, near.incoming.0);
            }
        }
    }

    /// What was recorded proves nothing: neither a preface and its proof to another listening end, nor an answer to
    /// another question.
    #[test]
    fn recordings_prove_nothing() {
        let own = Proof::new(Some(&[1; 32]));
        let asked = said(false).ask(&own);
        let answer = |asked: &Asked| {
            said(false)
                .answer(&asked.bytes, Answer::Welcome(5), &own)
                .unwrap()
        };
        let recorded = answer(&asked);
        let proof = asked.hear(&recorded.bytes, &own).ok().unwrap().proof;
        assert!(answer(&asked).verify(&proof).is_none());
        let again = said(false).ask(&own);
        assert_eq!(
            again.hear(&recorded.bytes, &own).err(),
            Some(Unproven::Token)
        );
        assert!(recorded.verify(&proof).is_some());
    }

    /// Refusals are told, and only by who knows the token.
    #[test]
    fn refusals_are_told() {
        let (own, other) = (Proof::new(Some(&[1; 32])), Proof::new(Some(&[2; 32])));
        for (answer, expected) in [
            (Answer::Gone, Unproven::Gone),
            (Answer::MustSeal, Unproven::MustSeal),
        ] {
            let asked = said(false).ask(&own);
            let right = said(false).answer(&asked.bytes, answer, &own).unwrap();
            assert_eq!(asked.hear(&right.bytes, &own).err(), Some(expected));
            let wrong = said(false).answer(&asked.bytes, answer, &other).unwrap();
            assert_eq!(asked.hear(&wrong.bytes, &own).err(), Some(Unproven::Token));
        }
    }
}
