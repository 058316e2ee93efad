# SPDX-License-Identifier: Apache-2.0
"""Videos with audio tracks, as Qwen-Omni's processors write them with use_audio_in_video: the features of video and
audio are interleaved (in Qwen2.5-Omni in chunks of time, in Qwen3-Omni by time), between the begin and end tokens of
video and audio."""

import bisect
import math

from dataset_writer import Video
from packing.record import EntryFault, Item


class VideoWithAudio(Video):
    """A video and the clip of its audio track, which are two items of a data set."""

    def __init__(self, video, sound):
        super().__init__(video.frames, video.per_second, video.seconds)
        self.video, self.sound = video, sound


def parts_of(item, frames_per_item=0):
    """Splits an item into items of a data set. `frames_per_item`: frames of a video per item; 0: all frames."""
    if isinstance(item, VideoWithAudio):
        return [item.video, item.sound]
    if not isinstance(item, Video) or not frames_per_item:
        return [item]
    begins = range(0, len(item.frames), frames_per_item)
    return [Video(item.frames[begin : begin + frames_per_item], item.per_second) for begin in begins]


def joined(record, items):
    """Returns the record and its items, with each video and the clip after it merged into one VideoWithAudio."""
    videos, clips, rest, messages = list(items["video"]), items["audio"], [], []
    for message in record.messages:
        parts = []
        for number, part in enumerate(message.parts):
            following = message.parts[number + 1] if number + 1 < len(message.parts) else None
            before = message.parts[number - 1] if number else None
            if is_of(part, "video"):
                if not is_of(following, "audio"):
                    fault = "has a <video> without an <audio> after it, which --audio-in-video requires"
                    raise EntryFault("items", fault)
                videos[part.number] = VideoWithAudio(videos[part.number], clips[following.number])
            elif is_of(part, "audio"):
                if is_of(before, "video"):
                    continue
                part = Item("audio", len(rest))
                rest.append(clips[message.parts[number].number])
            parts.append(part)
        messages.append(message._replace(parts=parts))
    return record._replace(messages=messages), {**items, "video": videos, "audio": rest}


def is_of(part, modality):
    return isinstance(part, Item) and part.modality == modality


def chunks(times, per_chunk):
    """Returns the number of features in each chunk of time; a feature begins at most one chunk."""
    begins = [0]
    for number, time in enumerate(times):
        if time >= len(begins) * per_chunk:
            begins.append(number)
    return [end - begin for begin, end in zip(begins, [*begins[1:], len(times)])]


def turns_by_time(times, heard):
    """Returns pairs (video features, audio features after them) that interleave both by time."""
    turns, passed = [], 0
    for number in range(heard):
        seen = bisect.bisect_right(times, number)
        turns.append((seen - passed, 1))
        passed = seen
    return [*turns, (len(times) - passed, 0)]


def turns_of(video, config, seen, heard, is_by_time):
    """Returns pairs (video features, audio features after them), in chunks of time, or by time. `seen`, `heard`: all
    features of the video and of its audio."""
    per_moment = config["vision_config"].get("temporal_patch_size", 2)
    moments = math.ceil(len(video.frames) / per_moment)
    per_second = config.get("position_id_per_seconds", 25)
    seconds = per_moment / video.per_second if video.per_second else 1
    times = [moment * seconds * per_second for moment in range(moments) for _ in range(seen // moments)]
    if is_by_time:
        return turns_by_time(times, heard)
    per_chunk = int(per_second * config.get("seconds_per_chunk", 2))
    by_turns = [chunks(times, per_chunk), chunks(range(heard), per_chunk)]
    most = max(map(len, by_turns))
    return list(zip(*(counts + [0] * (most - len(counts)) for counts in by_turns)))
