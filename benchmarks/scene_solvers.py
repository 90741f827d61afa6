"""Other solvers of pose graphs: gtsam's, Open3D's, and ours without the rules of joining."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vbreg.motions import inverse
from vbreg.scale import Scale
from vbreg.scenes import PoseEdges, solve_graph
from vbreg.types import Float64, Int64


def gtsam_solution(scans: int, edges: PoseEdges) -> tuple[Float64, Int64]:
    """Solve with gtsam's graduated non-convexity, truncated, from the tree of probable edges."""
    import gtsam

    from vbreg.motions import adjoint
    from vbreg.scenes.graph import components, tree_poses

    A = adjoint(edges.T_target_source)
    information = np.swapaxes(A, -1, -2) @ edges.information @ A
    factors, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    component = components(scans, edges)
    for k, pose in enumerate(tree_poses(scans, edges)):
        values.insert(k, gtsam.Pose3(pose))
    sure = gtsam.noiseModel.Isotropic.Sigma(6, 1e-6)
    firsts = np.unique(component, return_index=True)[1].tolist()
    for k in firsts:
        factors.add(gtsam.PriorFactorPose3(int(k), values.atPose3(int(k)), sure))
    for e in range(len(edges)):
        noise = gtsam.noiseModel.Gaussian.Information(information[e])
        pose = gtsam.Pose3(edges.T_target_source[e])
        ends = int(edges.target[e]), int(edges.source[e])
        factors.add(gtsam.BetweenFactorPose3(*ends, pose, noise))
    params = gtsam.GncLMParams(gtsam.LevenbergMarquardtParams())
    params.setLossType(gtsam.GncLossType.TLS)
    params.setKnownInliers(list(range(len(firsts))))
    optimizer = gtsam.GncLMOptimizer(factors, values, params)
    optimizer.setInlierCostThresholdsAtProbability(0.99)
    solved = optimizer.optimize()
    weights = np.asarray(optimizer.getWeights())[len(firsts) :]
    T = np.stack([solved.atPose3(k).matrix() for k in range(scans)])
    return T, components(scans, edges.take(weights > 0.5))


def open3d_solution(scans: int, edges: PoseEdges) -> tuple[Float64, Int64]:
    """Solve with Open3D's pose graph: every edge uncertain, then pruned by its line process."""
    import open3d

    from vbreg.scenes.graph import components, tree_poses

    registration = open3d.pipelines.registration
    graph = registration.PoseGraph()
    for pose in tree_poses(scans, edges):
        graph.nodes.append(registration.PoseGraphNode(pose))
    for s, t, pose, W in zip(
        edges.source, edges.target, edges.T_target_source, edges.information, strict=True
    ):
        graph.edges.append(registration.PoseGraphEdge(int(s), int(t), pose, W, uncertain=True))
    open3d_optimized(graph)
    T = np.stack([np.asarray(node.pose) for node in graph.nodes])
    ends = [(edge.source_node_id, edge.target_node_id) for edge in graph.edges]
    left = PoseEdges.of(ends, [np.eye(4)] * len(ends))
    return T, components(scans, left)


def open3d_optimized(graph: Any) -> None:
    """Solve a pose graph of Open3D in place."""
    import open3d

    registration = open3d.pipelines.registration
    option = registration.GlobalOptimizationOption(
        max_correspondence_distance=0.1, edge_prune_threshold=0.25, reference_node=0
    )
    registration.global_optimization(
        graph,
        registration.GlobalOptimizationLevenbergMarquardt(),
        registration.GlobalOptimizationConvergenceCriteria(),
        option,
    )


def plain_gnc(scans: int, edges: PoseEdges) -> tuple[Float64, Int64]:
    """Solve all edges at once with our own graph, without the rules of joining."""
    found = solve_graph(scans, edges)
    return found.T_world_scan, found.component


OTHERS: dict[str, Callable[[int, PoseEdges], tuple[Float64, Int64]]] = {
    "our GNC on all edges": plain_gnc,
    "gtsam GNC": gtsam_solution,
    "Open3D pose graph": open3d_solution,
}


def open3d_refined(
    points: Sequence[Float64], T: Float64, pairs: Sequence[tuple[int, int]], scale: Scale
) -> Float64:
    """Return poses (K, 4, 4) by Open3D's ICP of these pairs, from poses, and its pose graph."""
    import open3d

    registration = open3d.pipelines.registration
    clouds = []
    for each in points:
        cloud = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(each))
        cloud = cloud.voxel_down_sample(scale.voxel_size)
        around = open3d.geometry.KDTreeSearchParamHybrid(scale.normal_radius, 30)
        cloud.estimate_normals(around)
        clouds.append(cloud)
    graph = registration.PoseGraph()
    for pose in T:
        graph.nodes.append(registration.PoseGraphNode(pose))
    reach = scale.inlier_threshold
    to_plane = registration.TransformationEstimationPointToPlane()
    for s, t in pairs:
        X = inverse(T[t]) @ T[s]
        for most in (reach, reach / 2):
            X = registration.registration_icp(
                clouds[s], clouds[t], most, X, to_plane
            ).transformation
        W = registration.get_information_matrix_from_point_clouds(
            clouds[s], clouds[t], reach / 2, X
        )
        graph.edges.append(registration.PoseGraphEdge(s, t, X, W, uncertain=False))
    open3d_optimized(graph)
    return np.stack([np.asarray(node.pose) for node in graph.nodes])
