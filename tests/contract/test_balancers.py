"""Every packer, balancer and cut by its name through the exam that any must pass."""

from dataloader_svc.testing.balancers import BalancerContract, CutContract, PackerContract


class TestPackers(PackerContract):
    pass


class TestBalancers(BalancerContract):
    pass


class TestCuts(CutContract):
    pass
