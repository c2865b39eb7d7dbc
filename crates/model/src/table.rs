//! Rows that are found by a number of one kind: a lane's row is not found by a rail's number.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// A number of one kind, counted from 0.
pub trait Number: Copy {
    /// The number at this position.
    fn of(position: usize) -> Self;

    /// The position of its row.
    fn position(self) -> usize;
}

/// Rows by number, without gaps.
#[derive(Clone, PartialEq, Eq)]
pub struct Table<N, T> {
    rows: Vec<T>,
    kind: PhantomData<fn(N) -> N>,
}

impl<N, T> Default for Table<N, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<N, T> From<Vec<T>> for Table<N, T> {
    /// The first row gets the number 0.
    fn from(rows: Vec<T>) -> Self {
        Self {
            rows,
            kind: PhantomData,
        }
    }
}

impl<N: Number, T> Table<N, T> {
    /// A table without rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The number that the next row gets.
    #[must_use]
    pub fn next_number(&self) -> N {
        N::of(self.rows.len())
    }

    /// Adds a row and returns its number.
    pub fn push(&mut self, row: T) -> N {
        let number = self.next_number();
        self.rows.push(row);
        number
    }

    /// The row of that number, if there is one.
    #[must_use]
    pub fn get(&self, number: N) -> Option<&T> {
        self.rows.get(number.position())
    }

    /// As [`Table::get`].
    pub fn get_mut(&mut self, number: N) -> Option<&mut T> {
        self.rows.get_mut(number.position())
    }

    /// The row of that number; rows up to it are added where there are fewer.
    pub fn grown(&mut self, number: N) -> &mut T
    where
        T: Default,
    {
        if self.rows.len() <= number.position() {
            self.rows.resize_with(number.position() + 1, T::default);
        }
        &mut self.rows[number.position()]
    }

    /// All numbers, ascending.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = N> + ExactSizeIterator + use<N, T> {
        (0..self.rows.len()).map(N::of)
    }

    /// All rows in the order of their numbers.
    pub fn rows(&self) -> std::slice::Iter<'_, T> {
        self.rows.iter()
    }

    /// As [`Table::rows`].
    pub fn rows_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.rows.iter_mut()
    }

    /// All rows with their numbers.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (N, &T)> + ExactSizeIterator {
        let rows = self.rows.iter().enumerate();
        rows.map(|(position, row)| (N::of(position), row))
    }

    /// As [`Table::iter`].
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (N, &mut T)> + ExactSizeIterator {
        let rows = self.rows.iter_mut().enumerate();
        rows.map(|(position, row)| (N::of(position), row))
    }
}

impl<N: Number, T> Index<N> for Table<N, T> {
    type Output = T;

    fn index(&self, number: N) -> &T {
        &self.rows[number.position()]
    }
}

impl<N: Number, T> IndexMut<N> for Table<N, T> {
    fn index_mut(&mut self, number: N) -> &mut T {
        &mut self.rows[number.position()]
    }
}

impl<N, T: fmt::Debug> fmt::Debug for Table<N, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Seat(u32);

    impl Number for Seat {
        fn of(position: usize) -> Self {
            Self(position as u32)
        }

        fn position(self) -> usize {
            self.0 as usize
        }
    }

    /// A row keeps its number, and a number without a row has none.
    #[test]
    fn rows_are_found_by_their_numbers() {
        let mut table: Table<Seat, &str> = Table::new();
        assert!(table.is_empty());
        let (a, b) = (table.push("a"), table.push("b"));
        assert_eq!((a, b, table.next_number()), (Seat(0), Seat(1), Seat(2)));
        table[a] = "c";
        assert_eq!(
            (table[a], table.get(b), table.get(Seat(2))),
            ("c", Some(&"b"), None)
        );
        *table.grown(Seat(3)) = "d";
        let rows: Vec<(Seat, &str)> = table.iter().map(|(seat, row)| (seat, *row)).collect();
        assert_eq!(rows, [(a, "c"), (b, "b"), (Seat(2), ""), (Seat(3), "d")]);
        assert_eq!(table.numbers().next_back(), Some(Seat(3)));
    }
}
