/** Settings of kube-proxy's that are accepted, so that its flags and files can stay, and do nothing. */
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

const WINDOWS = 'for Windows';
const LOGGING = 'log lines go to standard output, each written at once';
const MACHINE = 'kube-proxy does not use it either';
const CLIENT = 'the agent lists and watches, and asks for little else';

const group = 'unused';
const word = optional(text);

/** A setting of a file that has no flag. */
function fileOnly<T>(field: string, kind: Kind<T>, value: T, reason: string): Setting<T> {
  return setting({ group, field, kind, default: value, fileOnly: true, text: reason });
}

/** A logging flag, which counts beside --config in kube-proxy too. */
function logging<T>(field: string, kind: Kind<T>, value: T): Setting<T> {
  return setting({ group, field, kind, default: value, winsOverFile: true, text: LOGGING });
}

export const UNUSED_SETTINGS = {
  acceptContentTypes: fileOnly('clientConnection.acceptContentTypes', word, undefined, CLIENT),
  kubeApiContentType: setting({
    group,
    field: 'clientConnection.contentType',
    kind: text,
    default: 'application/vnd.kubernetes.protobuf',
    text: 'the API server is asked for JSON',
  }),
  kubeApiQps: setting({
    group,
    field: 'clientConnection.qps',
    kind: decimal,
    default: 5,
    text: CLIENT,
  }),
  kubeApiBurst: setting({
    group,
    field: 'clientConnection.burst',
    kind: count,
    default: 10,
    text: CLIENT,
  }),
  configSyncPeriod: setting({
    group,
    field: 'configSyncPeriod',
    kind: duration({ zero: false }),
    default: 15 * 60_000,
    text: 'what was watched is not handed on a second time',
  }),
  profiling: setting({
    group,
    field: 'enableProfiling',
    kind: boolean,
    default: false,
    text: "there is no /debug/pprof, which is Go's",
    more: '[metrics.md](metrics.md) has what there is instead.',
  }),
  machineIdFile: setting({
    group,
    kind: text,
    default: '/etc/machine-id,/var/lib/dbus/machine-id',
    winsOverFile: true,
    text: MACHINE,
  }),
  bootIdFile: setting({
    group,
    kind: text,
    default: '/proc/sys/kernel/random/boot_id',
    winsOverFile: true,
    text: MACHINE,
  }),
  showHiddenMetricsForVersion: setting({
    group,
    field: 'showHiddenMetricsForVersion',
    kind: optional(matching('<version>', /^\d+\.\d+$/, 'MAJOR.MINOR')),
    default: undefined,
    text: 'no metric is hidden',
  }),
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
    'kube-proxy does not use it any more either',
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
