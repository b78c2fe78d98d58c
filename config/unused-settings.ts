/** Settings of kube-proxy that are accepted and ignored, so that its flags and files can be used unchanged. */

import { moduleLevels, quantity } from './map-types.ts';
import { type Setting, setting } from './setting.ts';
import {
  boolean,
  decimalNumber,
  duration,
  durationOrNanoseconds,
  nonNegativeInt32,
  optional,
  text,
  textMatching,
  type ValueType,
} from './value-types.ts';

const WINDOWS = 'Windows only';
const LOGGING = 'every log line is written to standard output at once';
const MACHINE = 'kube-proxy ignores it too';
const CLIENT = 'the agent makes few requests besides lists and watches';

const group = 'unused';
const word = optional(text);

function unused<T>(field: string, kind: ValueType<T>, value: T, reason: string): Setting<T> {
  return setting(group, { field, type: kind, default: value, help: reason });
}

/** A setting of a file that has no flag. */
function fileOnly<T>(field: string, kind: ValueType<T>, value: T, reason: string): Setting<T> {
  return { ...unused(field, kind, value, reason), fileOnly: true };
}

/** A logging flag, which counts beside --config in kube-proxy too. */
function logging<T>(field: string, kind: ValueType<T>, value: T): Setting<T> {
  return { ...unused(field, kind, value, LOGGING), overridesFile: true };
}

export const UNUSED_SETTINGS = {
  acceptContentTypes: fileOnly('clientConnection.acceptContentTypes', word, undefined, CLIENT),
  kubeApiContentType: unused(
    'clientConnection.contentType',
    text,
    'application/vnd.kubernetes.protobuf',
    'the agent requests JSON',
  ),
  kubeApiQps: unused('clientConnection.qps', decimalNumber, 5, CLIENT),
  kubeApiBurst: unused('clientConnection.burst', nonNegativeInt32, 10, CLIENT),
  configSyncPeriod: unused(
    'configSyncPeriod',
    duration({ zero: false }),
    15 * 60_000,
    'the agent does not process unchanged objects periodically',
  ),
  profiling: setting(group, {
    field: 'enableProfiling',
    type: boolean,
    default: false,
    help: '/debug/pprof is specific to Go',
    details: '[metrics.md](metrics.md) lists the alternatives.',
  }),
  machineIdFile: setting(group, {
    type: text,
    default: '/etc/machine-id,/var/lib/dbus/machine-id',
    overridesFile: true,
    help: MACHINE,
  }),
  bootIdFile: setting(group, {
    type: text,
    default: '/proc/sys/kernel/random/boot_id',
    overridesFile: true,
    help: MACHINE,
  }),
  showHiddenMetricsForVersion: unused(
    'showHiddenMetricsForVersion',
    optional(textMatching('<version>', /^\d+\.\d+$/, 'MAJOR.MINOR')),
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
    optional(textMatching('<range>', /^\d+([-+]\d+)?$/, 'a range of ports such as 300-2000')),
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
