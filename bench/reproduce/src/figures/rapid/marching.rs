//! Marching cubes (Lorensen and Cline, 1987) on a generated volume, with a table that is worked out instead of written down.
//!
//! Corner `i` of a cube lies at the bits of `i`: x, y, z. On each face, seen from outside, every run of inside corners is cut
//! off by one line from the edge where the run begins to the edge where it ends. An edge begins a run on one of its faces and ends one
//! on the other, so the lines join to loops, which are filled as fans. Neighbours cut their common face alike: the surface has no holes.

/// Edges as pairs of corners.
const EDGES: [(usize, usize); 12] = [
    (0, 1),
    (2, 3),
    (4, 5),
    (6, 7),
    (0, 2),
    (1, 3),
    (4, 6),
    (5, 7),
    (0, 4),
    (1, 5),
    (2, 6),
    (3, 7),
];

/// Not made yet.
const NONE: u32 = u32::MAX;

fn edge_between(a: usize, b: usize) -> usize {
    let pair = (a.min(b), a.max(b));
    // Corners that follow each other around a face are joined by an edge.
    EDGES.iter().position(|edge| *edge == pair).unwrap_or(0)
}

/// Triangles of every case, as edges of the cube; bit `i` of the case: corner `i` is inside.
pub(super) struct Table(Vec<Vec<[usize; 3]>>);

impl Table {
    /// Works it out.
    pub fn new() -> Self {
        Self((0..256).map(Self::case).collect())
    }

    fn case(inside: usize) -> Vec<[usize; 3]> {
        let is_inside = |corner: usize| inside >> corner & 1 == 1;
        let mut next = [None; 12];
        for axis in 0..3 {
            let (u, v) = (1 << ((axis + 1) % 3), 1 << ((axis + 2) % 3));
            for (base, around) in [
                (1 << axis, [0, u, u + v, v]),
                // The opposite face is seen from the other side.
                (0, [0, v, u + v, u]),
            ] {
                let corner = |at: usize| base + around[at % 4];
                for begin in 0..4 {
                    if is_inside(corner(begin)) || !is_inside(corner(begin + 1)) {
                        continue;
                    }
                    let last = (begin + 1..begin + 4)
                        .find(|at| !is_inside(corner(at + 1)))
                        .unwrap_or(begin + 1);
                    let from = edge_between(corner(begin), corner(begin + 1));
                    next[from] = Some(edge_between(corner(last), corner(last + 1)));
                }
            }
        }
        let mut triangles = Vec::new();
        for first in 0..12 {
            let mut loop_ = Vec::new();
            let mut edge = first;
            while let Some(after) = next[edge].take() {
                loop_.push(edge);
                edge = after;
            }
            for two in loop_.get(1..).unwrap_or_default().windows(2) {
                triangles.push([loop_[0], two[0], two[1]]);
            }
        }
        triangles
    }
}

/// Values at the points of a cubic grid.
pub(super) struct Volume {
    /// Points along each side.
    pub side: usize,
    /// x runs fastest.
    pub values: Vec<f32>,
}

impl Volume {
    /// A volume with a value for each point.
    pub fn of(side: usize, value: impl Fn(usize, usize, usize) -> f32) -> Self {
        let mut values = Vec::with_capacity(side * side * side);
        for z in 0..side {
            for y in 0..side {
                values.extend((0..side).map(|x| value(x, y, z)));
            }
        }
        Self { side, values }
    }

    /// Two bones and a joint, in a sense: blobs on two shafts with a rough skin. Positive inside.
    pub fn joint(side: usize) -> Self {
        let scale = 2.0 / (side - 1) as f32;
        Self::of(side, |x, y, z| {
            let [x, y, z] = [x, y, z].map(|at| at as f32 * scale - 1.0);
            let blob = |cx: f32, cy: f32, cz: f32, width: f32| {
                let (dx, dy, dz) = (x - cx, y - cy, z - cz);
                (-(dx * dx + dy * dy + dz * dz) / (width * width)).exp()
            };
            let shaft = |cx: f32| (-((x - cx).powi(2) + y * y) / 0.04).exp();
            let rough = (x * 37.0).sin() * (y * 41.0).sin() * (z * 43.0).sin();
            let sum = blob(0.0, 0.0, 0.3, 0.35) + blob(0.1, 0.1, -0.3, 0.35);
            sum + 0.6 * shaft(0.05) + 0.5 * shaft(-0.1) + 0.12 * rough - 0.5
        })
    }
}

/// Triangles with common corners.
#[derive(Default)]
pub(super) struct Mesh {
    /// Corners, in units of the grid.
    pub vertices: Vec<[f32; 3]>,
    /// Numbers of corners; anticlockwise from outside.
    pub triangles: Vec<[u32; 3]>,
}

/// The cells of a layer that the surface passes through, and their cases. `tick` is called for each row.
pub(super) fn classify(volume: &Volume, z: usize, mut tick: impl FnMut()) -> Vec<(u32, u8)> {
    let side = volume.side;
    let mut cells = Vec::new();
    for y in 0..side - 1 {
        tick();
        for x in 0..side - 1 {
            let mut case = 0u8;
            for corner in 0..8 {
                let at = (z + (corner >> 2)) * side * side
                    + (y + (corner >> 1 & 1)) * side
                    + x
                    + (corner & 1);
                case |= u8::from(volume.values[at] > 0.0) << corner;
            }
            if case != 0 && case != 255 {
                cells.push(((y * side + x) as u32, case));
            }
        }
    }
    cells
}

/// Puts the surface together, layer by layer.
pub(super) struct Extraction<'v> {
    table: Table,
    volume: &'v Volume,
    // By point and direction of the edge that begins there.
    made: Vec<u32>,
    /// What there is of it.
    pub mesh: Mesh,
}

impl<'v> Extraction<'v> {
    /// Nothing yet.
    pub fn new(volume: &'v Volume) -> Self {
        Self {
            table: Table::new(),
            volume,
            made: vec![NONE; volume.values.len() * 3],
            mesh: Mesh::default(),
        }
    }

    /// Adds the triangles of a layer's cells. `tick` is called for each few cells.
    pub fn add(&mut self, z: usize, cells: &[(u32, u8)], mut tick: impl FnMut()) {
        const FEW: usize = 64;
        let side = self.volume.side;
        for (number, &(cell, case)) in cells.iter().enumerate() {
            if number % FEW == 0 {
                tick();
            }
            let (x, y) = (cell as usize % side, cell as usize / side);
            for number in 0..self.table.0[usize::from(case)].len() {
                let edges = self.table.0[usize::from(case)][number];
                let corners = edges.map(|edge| self.vertex([x, y, z], edge));
                self.mesh.triangles.push(corners);
            }
        }
    }

    fn vertex(&mut self, cell: [usize; 3], edge: usize) -> u32 {
        let side = self.volume.side;
        let (low, high) = EDGES[edge];
        let point = |corner: usize| [0, 1, 2].map(|axis| cell[axis] + (corner >> axis & 1));
        let index = |[x, y, z]: [usize; 3]| (z * side + y) * side + x;
        let (from, to) = (point(low), point(high));
        let axis = (high - low).ilog2() as usize;
        let slot = index(from) * 3 + axis;
        if self.made[slot] == NONE {
            let (a, b) = (
                self.volume.values[index(from)],
                self.volume.values[index(to)],
            );
            let mut place = from.map(|at| at as f32);
            place[axis] += a / (a - b);
            self.made[slot] = self.mesh.vertices.len() as u32;
            self.mesh.vertices.push(place);
        }
        self.made[slot]
    }
}

/// The whole surface.
#[cfg(test)]
fn surface(volume: &Volume) -> Mesh {
    let mut extraction = Extraction::new(volume);
    for z in 0..volume.side - 1 {
        extraction.add(z, &classify(volume, z, || ()), || ());
    }
    extraction.mesh
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Every edge occurs as often in one direction as in the other: no holes, one orientation.
    fn assert_closed(mesh: &Mesh) {
        let mut balance = BTreeMap::new();
        for [a, b, c] in &mesh.triangles {
            for (from, to) in [(a, b), (b, c), (c, a)] {
                let sign = if from < to { 1 } else { -1 };
                *balance.entry((from.min(to), from.max(to))).or_insert(0) += sign;
            }
        }
        let open = balance.iter().find(|(_, balance)| **balance != 0);
        assert_eq!(open, None, "an edge has one side only");
    }

    fn volume_within(mesh: &Mesh) -> f32 {
        let of = |[a, b, c]: &[u32; 3]| {
            let [a, b, c] = [a, b, c].map(|at| mesh.vertices[*at as usize]);
            let cross = [
                b[1] * c[2] - b[2] * c[1],
                b[2] * c[0] - b[0] * c[2],
                b[0] * c[1] - b[1] * c[0],
            ];
            (a[0] * cross[0] + a[1] * cross[1] + a[2] * cross[2]) / 6.0
        };
        mesh.triangles.iter().map(of).sum()
    }

    /// A ball becomes a closed surface without handles, seen from outside, with the ball's volume.
    #[test]
    fn a_ball() {
        let radius = 10.0;
        let volume = Volume::of(32, |x, y, z| {
            let [x, y, z] = [x, y, z].map(|at| at as f32 - 15.3);
            radius - (x * x + y * y + z * z).sqrt()
        });
        let mesh = surface(&volume);
        assert_closed(&mesh);
        let (corners, triangles) = (mesh.vertices.len(), mesh.triangles.len());
        assert_eq!(corners + triangles, triangles * 3 / 2 + 2, "Euler");
        let ball = 4.0 / 3.0 * std::f32::consts::PI * radius.powi(3);
        let share = volume_within(&mesh) / ball;
        assert!((0.98..1.0).contains(&share), "{share}");
    }

    /// Noise, in which all 256 cases and all pairs of neighbours occur, still has a closed surface.
    #[test]
    fn noise_has_no_holes() {
        let side = 24;
        let mut state = 1_u32;
        let noise: Vec<f32> = (0..side * side * side)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) as f32 / 32768.0 - 1.0
            })
            .collect();
        let volume = Volume::of(side, |x, y, z| {
            let is_border = [x, y, z].iter().any(|at| *at == 0 || *at == side - 1);
            match is_border {
                true => -1.0,
                false => noise[(z * side + y) * side + x],
            }
        });
        let cases: BTreeSet<u8> = (0..side - 1)
            .flat_map(|z| classify(&volume, z, || ()))
            .map(|(_, case)| case)
            .collect();
        assert_eq!(cases.len(), 254);
        assert_closed(&surface(&volume));
    }

    /// The generated volume has a surface, and not in every cell.
    #[test]
    fn the_joint() {
        let volume = Volume::joint(40);
        let cells: usize = (0..39).map(|z| classify(&volume, z, || ()).len()).sum();
        assert!((500..20_000).contains(&cells), "{cells}");
    }
}
