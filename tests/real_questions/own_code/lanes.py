import numpy as np
from torch.utils.data import DataLoader

from real_questions.parts import Samples
from real_questions.question import question

CV2_SHIFT = 8


def transform_points(points, matrix):
    points = points.T
    stacked = np.vstack((points[:2], np.ones(points.shape[1])))
    return matrix.dot(stacked)[:2].T


def cv2_subpixel(coords):
    return (coords * 2**CV2_SHIFT).astype(np.int64)


class SemanticRasterizer:
    """Draws the lanes of a map, as seen from a car."""

    def __init__(self, raster_size=112, lanes=2000):
        draw = np.random.default_rng(0)
        self.raster_size = raster_size
        centres = draw.uniform(0, 400, (lanes, 1, 2))
        along = np.linspace(-4, 4, 15)[:, None] * draw.normal(size=(lanes, 1, 2))
        self.left = centres + along
        self.right = self.left + draw.normal(size=(lanes, 1, 2))
        self.centres = centres[:, 0]

    def get_lane_coords(self, lane):
        return {"xyz_left": self.left[lane], "xyz_right": self.right[lane]}

    def rasterize(self, centre, yaw):
        import cv2

        near = np.flatnonzero(np.abs(self.centres - centre).max(1) < 56)
        turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        offset = self.raster_size / 2 - turn @ centre
        raster_from_world = np.vstack((np.column_stack((turn, offset)), [0, 0, 1]))
        img = np.full((self.raster_size, self.raster_size, 3), 255, np.uint8)
        for lane in near:
            coords = self.get_lane_coords(lane)
            left = cv2_subpixel(transform_points(coords["xyz_left"][:, :2], raster_from_world))
            right = cv2_subpixel(transform_points(coords["xyz_right"][:, :2], raster_from_world))
            area = np.vstack((left, np.flip(right, 0))).astype(np.int32)
            cv2.fillPoly(img, [area], (17, 17, 31), shift=CV2_SHIFT)
        return img


class AgentDataset(Samples):
    """What cars see, and where they drive then."""

    def __init__(self, rasterizer, count=3000):
        draw = np.random.default_rng(1)
        self.rasterizer = rasterizer
        self.centroids = draw.uniform(60, 340, (count, 2))
        self.yaws = draw.uniform(0, 6, count)
        self.targets = draw.normal(size=(count, 50, 2)).astype(np.float32)

    def __getitem__(self, index):
        index %= len(self.yaws)
        img = self.rasterizer.rasterize(self.centroids[index], self.yaws[index])
        return {"image": img.transpose(2, 0, 1), "target_positions": self.targets[index]}


@question(
    source="l5kit #136, #216",
    report="the points of each lane are transformed; all in one call, twice as fast",
    step_s=0.012,
    causes=("one-transform",),
    place=r"SemanticRasterizer|rasterize|transform_points|AgentDataset|__getitem__",
    lever=r"at once|whole|vector|NumPy|one call|\bonce\b|beforehand|in advance|[Kk]eep|\bcache",
)
def lanes_of_map(_folder):
    """Move the sides of lanes one by one."""
    dataset = AgentDataset(SemanticRasterizer())
    return DataLoader(dataset, batch_size=12, shuffle=True, num_workers=2)
