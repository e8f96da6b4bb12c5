"""The learner: NumPy and SciPy only. No Dask, no Zarr, no files.

The paper's letters live in this folder and nowhere else, each with one meaning and one
orientation. "Eq. (k)" is an equation of "SADIH: Semantic-Aware DIscrete Hashing" (AAAI 2019).

    symbol  shape   meaning
    n               rows of the collection
    d, c, l, g      features, classes (labels), bits, label groups
    X       d x n   features, centred and of unit variance
    Y       c x n   labels, 0 or 1
    S       n x n   similarity of rows, or g x g of label groups
    G       c x g   labels of each group: the distinct columns of Y
    N       g       rows in each group
    B       l x g   codes in {-1, 1}, one column per group
    W       c x l   label embedding
    V, R    l x g   latent embedding W^T G (of all rows: W^T Y)
    Q       c x g   l G diag(N) S: the distinct columns of l Y S
    D       g       weights of the l21 norm, 1 / (2 ||u^i||)
    U       n x n   residual l S - V^T B, u^i its rows
    P1      l x d   encoder of the autoencoder
    P2      d x l   decoder

Rows with equal label sets have equal columns in S, Q, V and U. Started from equal codes they keep
equal codes for ever, so n columns collapse to g, and every sum over rows becomes a sum over groups
weighted by N. X enters through X X^T, X Y^T and the sums of X over each group. All of these come
from one pass over the data (`statistics`); nothing after that pass depends on n.

Read `classes` (names to numbers), `labels` (rows to groups), `features`, `statistics` and
`similarity`, which make a `problem`;
then `start`, `updates`, `objective` and `solver`, which learn codes, and `encoders`, which hash
rows that have no labels. `randomness` has the seeds.
"""
