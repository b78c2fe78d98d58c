/** Settings of kube-proxy that are accepted and ignored, so that its flags and files can be used unchanged. */
import {
  boolean,
  count,
  decimal,
  duration,
  durationOrNanoseconds,
  type Kind,
  matching,
  optional,
  text,
} from './kinds.ts';
import { moduleLevels, quantity } from './map-kinds.ts';
import { type Setting, setting } from './setting.ts';

const WINDOWS = 'Windows only';
const LOGGING = 'every log line is written to standard output at once';
const MACHINE = 'kube-proxy ignores it too';
const CLIENT = 'the agent makes few requests besides lists and watches';

const group = 'unused';
const word = optional(text);

function unused<T>(field: string, kind: Kind<T>, value: T, reason: string): Setting<T> {
  return setting(group, { field, kind, default: value, text: reason });
}

/** A setting of a file that has no flag. */
function fileOnly<T>(field: string, kind: Kind<T>, value: T, reason: string): Setting<T> {
  return { ...unused(field, kind, value, reason), fileOnly: true };
}

/** A logging flag, which counts beside --config in kube-proxy too. */
function logging<T>(field: string, kind: Kind<T>, value: T): Setting<T> {
  return { ...unused(field, kind, value, LOGGING), winsOverFile: true };
}

export const UNUSED_SETTINGS = {
  acceptContentTypes: fileOnly('clientConnection.acceptContentTypes', word, undefined, CLIENT),
  kubeApiContentType: unused(
    'clientConnection.contentType',
    text,
    'application/vnd.kubernetes.protobuf',
    'the agent requests JSON',
  ),
  kubeApiQps: unused('clientConnection.qps', decimal, 5, CLIENT),
  kubeApiBurst: unused('clientConnection.burst', count, 10, CLIENT),
  configSyncPeriod: unused(
    'configSyncPeriod',
    duration({ zero: false }),
    15 * 60_000,
    'the agent does not process unchanged objects periodically',
  ),
  profiling: setting(group, {
    field: 'enableProfiling',
    kind: boolean,
    default: false,
    text: '/debug/pprof is specific to Go',
    more: '[metrics.md](metrics.md) lists the alternatives.',
  }),
  machineIdFile: setting(group, {
    kind: text,
    default: '/etc/machine-id,/var/lib/dbus/machine-id',
    winsOverFile: true,
    text: MACHINE,
  }),
  bootIdFile: setting(group, {
    kind: text,
    default: '/proc/sys/kernel/random/boot_id',
    winsOverFile: true,
    text: MACHINE,
  }),
  showHiddenMetricsForVersion: unused(
    'showHiddenMetricsForVersion',
    optional(matching('<version>', /^\d+\.\d+$/, 'MAJOR.MINOR')),
    undefined,
    'the agent has no hidden metrics',
  ),
  logFlushFrequency: logging('logging.flushFrequency', durationOrNanoseconds, 5000),
  vmodule: logging('logging.vmodule', moduleLevels, []),
  logJsonSplitStream: logging('logging.options.json.splitStream', boolean, false),
  logJsonInfoBufferSize: logging('logging.options.json.infoBufferSize', quantity, '0'),
  logTextSplitStream: logging('logging.options.text.splitStream', boolean, false),
  logTextInfoBufferSize: logging('logging.options.text.infoBufferSize', quantity, '0'),
  portRange: fileOnly(
    'portRange',
    optional(matching('<range>', /^\d+([-+]\d+)?$/, 'a range of ports such as 300-2000')),
    undefined,
    'kube-proxy no longer uses it',
  ),
  winkernelNetworkName: fileOnly('winkernel.networkName', word, undefined, WINDOWS),
  winkernelSourceVip: fileOnly('winkernel.sourceVip', word, undefined, WINDOWS),
  winkernelEnableDsr: fileOnly('winkernel.enableDSR', boolean, false, WINDOWS),
  winkernelRootHnsEndpointName: fileOnly('winkernel.rootHnsEndpointName', word, undefined, WINDOWS),
  winkernelForwardHealthCheckVip: fileOnly(
    'winkernel.forwardHealthCheckVip',
    boolean,
    false,
    WINDOWS,
  ),
  windowsRunAsService: fileOnly('windowsRunAsService', boolean, false, WINDOWS),
};
