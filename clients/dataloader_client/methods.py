"""The RPCs by path and type: the one table that clients and services are wired from.

Generated service stubs are not used: payload streams are raw bytes, which they can't express.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from dataloader_client._pb import (
    common_pb2,
    constructor_service_pb2,
    control_service_pb2,
    loader_service_pb2,
    plan_pb2,
    planner_service_pb2,
)

PROTOCOL = 1
"""Version of the conversation. Client and service must agree; the text of a mismatch says who is older."""

ERROR_KEY = "dataloader-error"
"""Trailing metadata that names the service's error class, so that the caller raises its counterpart."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Unary(Generic[Request, Response]):
    """One message there, one back."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]

    @property
    def path(self) -> str:
        return f"/dataloader.v1.{self.service}/{self.name}"


@dataclass(frozen=True, slots=True)
class RawStream(Generic[Request]):
    """One message there, a frame back (see `wire.py`)."""

    service: str
    name: str
    request: type[Request]

    @property
    def path(self) -> str:
        return f"/dataloader.v1.{self.service}/{self.name}"


@dataclass(frozen=True, slots=True)
class Bidirectional(Generic[Request, Response]):
    """Messages both ways on one stream."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]

    @property
    def path(self) -> str:
        return f"/dataloader.v1.{self.service}/{self.name}"


CONSTRUCTOR = "ConstructorService"
JOIN = Unary(CONSTRUCTOR, "Join", plan_pb2.JoinRequest, plan_pb2.JoinResponse)
READ = RawStream(CONSTRUCTOR, "Read", constructor_service_pb2.ReadRequest)
LEAVE = Unary(CONSTRUCTOR, "Leave", constructor_service_pb2.LeaveRequest, common_pb2.Empty)
REPORT = Unary(
    CONSTRUCTOR, "Report", constructor_service_pb2.ReportRequest, constructor_service_pb2.ReportResponse
)
CONSTRUCTOR_STATUS = Unary(CONSTRUCTOR, "Status", common_pb2.Empty, constructor_service_pb2.ConstructorStatus)

PLANNER = "PlannerService"
PLANNER_JOIN = Unary(PLANNER, "Join", plan_pb2.JoinRequest, plan_pb2.JoinResponse)
PLANS = Bidirectional(PLANNER, "Plans", planner_service_pb2.PlanDemand, plan_pb2.PlacedPlan)
PLANNER_STATUS = Unary(PLANNER, "Status", common_pb2.Empty, planner_service_pb2.PlannerStatus)
PLANNER_REPORT = Unary(PLANNER, "Report", planner_service_pb2.StepTimes, common_pb2.Empty)

LOADER = "LoaderService"
DESCRIBE = Unary(LOADER, "Describe", loader_service_pb2.DescribeRequest, loader_service_pb2.DescribeResponse)
PROBE = RawStream(LOADER, "Probe", loader_service_pb2.BlockRequest)
FETCH = RawStream(LOADER, "Fetch", loader_service_pb2.FetchRequest)
RELEASE = Unary(LOADER, "Release", loader_service_pb2.BlockRequest, common_pb2.Empty)
LOADER_STATUS = Unary(LOADER, "Status", common_pb2.Empty, loader_service_pb2.LoaderStatus)

CONTROL = "ControlService"
SET_MIXTURE = Unary(
    CONTROL, "SetMixture", control_service_pb2.MixtureChange, control_service_pb2.MixtureChange
)
SHOW_MIXTURE = Unary(CONTROL, "ShowMixture", common_pb2.Empty, control_service_pb2.MixtureStatus)
COMMIT = Unary(CONTROL, "Commit", control_service_pb2.CommitRequest, control_service_pb2.CommitResponse)
REPORT_LOSSES = Unary(
    CONTROL, "ReportLosses", control_service_pb2.LossesRequest, control_service_pb2.LossesResponse
)
