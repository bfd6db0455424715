"""What deploy/ promises of its files that no other test sees: Kubernetes would take the pod in a
namespace with the strictest of the PodSecurity standards, "restricted".

package_test.py starts what the systemd unit and the container image start.
"""
import unittest

import harness

try:
    import yaml
except ImportError:
    yaml = None

# What the standard allows: https://kubernetes.io/docs/concepts/security/pod-security-standards
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
           "projected", "secret"}
CAPABILITIES = {"NET_BIND_SERVICE"}
SECCOMP = {"RuntimeDefault", "Localhost"}


def violations(pod: dict) -> list[str]:
    """What "restricted" forbids in the spec of a pod."""
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    common = pod.get("securityContext", {})
    found += ["sysctls"] if common.get("sysctls") else []
    for volume in pod.get("volumes", []):
        found += sorted(f"volume {kind}" for kind in volume.keys() - VOLUMES - {"name"})
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container.get("securityContext", {})
        # What a container does not say of itself it has from the pod.
        context = {**common, **own}
        capabilities = own.get("capabilities", {})
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities.drop": "ALL" in capabilities.get("drop", []),
            "capabilities.add": CAPABILITIES.issuperset(capabilities.get("add", [])),
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "runAsUser": context.get("runAsUser") != 0,
            "seccompProfile": context.get("seccompProfile", {}).get("type") in SECCOMP,
            "procMount": own.get("procMount", "Default") == "Default",
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
        }
        found += [name for name, ok in checks.items() if not ok]
    return found


class Kubernetes(unittest.TestCase):
    def setUp(self):
        if yaml is None:
            self.skipTest("this Python has no yaml (Debian: python3-yaml)")
        documents = yaml.safe_load_all((harness.ROOT / "deploy" / "kubernetes.yaml").read_text())
        self.pods = [document["spec"]["template"]["spec"] for document in documents
                     if document["kind"] == "Deployment"]

    def test_the_pod_is_restricted(self):
        self.assertEqual(len(self.pods), 1)
        self.assertEqual(violations(self.pods[0]), [])

    def test_the_rules_see_what_is_missing(self):
        [pod] = self.pods
        [container] = pod["containers"]
        container["securityContext"] = {"capabilities": {"add": ["SYS_PTRACE"]}}
        container["ports"][0]["hostPort"] = 80
        pod.update(securityContext={}, hostIPC=True)
        pod["volumes"].append({"name": "models", "hostPath": {"path": "/models"}})
        self.assertEqual(violations(pod), [
            "hostIPC", "volume hostPath", "allowPrivilegeEscalation", "capabilities.drop",
            "capabilities.add", "runAsNonRoot", "seccompProfile", "hostPort"])


if __name__ == "__main__":
    harness.main()
